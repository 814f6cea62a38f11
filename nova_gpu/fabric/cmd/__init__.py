# SPDX-License-Identifier: Apache-2.0
"""Text of the commands on a host about its board."""
