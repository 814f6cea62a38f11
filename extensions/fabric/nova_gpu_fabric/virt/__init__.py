# SPDX-License-Identifier: Apache-2.0
"""The board with NVSwitches of a KVM host: its partitions, and their activation for guests."""
