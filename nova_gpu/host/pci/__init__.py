# SPDX-License-Identifier: Apache-2.0
"""PCI devices in sysfs: a host's GPUs, their IOMMU groups, links and BARs, and those selected."""
