# SPDX-License-Identifier: Apache-2.0
"""The board with NVSwitches of a KVM host: Fabric Manager's partitions and their owners."""
