# SPDX-License-Identifier: Apache-2.0
"""Whole cards for QEMU guests: binding to vfio-pci, resets, and what prevents passthrough.

Scripts that may hang in a driver run as separate processes.
"""
