# SPDX-License-Identifier: Apache-2.0
"""The board with NVSwitches of a KVM host: what its Fabric Manager says, and whose its partitions
are."""
