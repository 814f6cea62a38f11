# SPDX-License-Identifier: Apache-2.0
"""Boards with NVSwitches, whose cards KVM guests get in the sets of Fabric Manager."""
