# SPDX-License-Identifier: Apache-2.0
"""PCI devices in sysfs: which GPUs a host has, their products, links and BARs, and which of them
the operator offers.
"""
