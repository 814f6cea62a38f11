# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of boards: whether a set of the size asked for is free."""
