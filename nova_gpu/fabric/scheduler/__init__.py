# SPDX-License-Identifier: Apache-2.0
"""The scheduler's part: whether a partition of the requested size is free."""
