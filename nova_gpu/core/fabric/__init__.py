# SPDX-License-Identifier: Apache-2.0
"""The NVSwitches of a board, and which of its cards they can join for one guest."""
