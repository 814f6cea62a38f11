# SPDX-License-Identifier: Apache-2.0
"""PCI devices in sysfs: a host's GPUs, their products, links and BARs, and those selected."""
