# SPDX-License-Identifier: Apache-2.0
"""Health of cards: PCIe errors and NVML in each period, Xids in the kernel's log, failed starts."""
