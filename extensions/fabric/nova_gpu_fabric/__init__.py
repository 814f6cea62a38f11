# SPDX-License-Identifier: Apache-2.0
"""Boards with NVSwitches: KVM guests get their cards in Fabric Manager's partitions."""
