# SPDX-License-Identifier: Apache-2.0
"""The machine that a KVM guest sees: its address space, the PCI Express tree of its cards with
expanders and switches, its NUMA cells, and what it is told of its GPUs (``devices``).
"""
