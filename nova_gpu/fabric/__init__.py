# SPDX-License-Identifier: Apache-2.0
"""Support for boards with NVSwitches, whose cards KVM guests get in Fabric Manager's partitions."""
