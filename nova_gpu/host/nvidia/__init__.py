# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver says: NVML, Xids in the kernel's log, which cards are on boards with
NVSwitches."""
