# SPDX-License-Identifier: Apache-2.0
"""The partitions of a board with NVSwitches: choice and traits."""
