# SPDX-License-Identifier: Apache-2.0
"""Whole cards for QEMU guests: IOMMU groups, binding to vfio-pci and back, resets, and what stands
in the way. Scripts that may hang in a driver run as processes of their own.
"""
