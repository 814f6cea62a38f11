# SPDX-License-Identifier: Apache-2.0
"""The machine of a KVM guest: address space, PCI Express tree, NUMA cells and metadata."""
