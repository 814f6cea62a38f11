# SPDX-License-Identifier: Apache-2.0
"""Readers of NVIDIA's driver: NVML, /proc, and Xids in the kernel's log."""
