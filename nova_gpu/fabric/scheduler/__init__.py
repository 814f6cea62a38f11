# SPDX-License-Identifier: Apache-2.0
"""The scheduler's part of boards: whether a set of the size asked for is free."""
