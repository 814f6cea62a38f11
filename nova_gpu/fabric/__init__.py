# SPDX-License-Identifier: Apache-2.0
"""Boards with NVSwitches, whose cards guests of KVM get in the sets that a fabric manager joins."""
