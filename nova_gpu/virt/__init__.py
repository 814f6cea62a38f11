# SPDX-License-Identifier: Apache-2.0
"""The compute host's side of Nova: the driver, which only overrides, and what it calls."""
