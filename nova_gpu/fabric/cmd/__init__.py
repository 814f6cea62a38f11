# SPDX-License-Identifier: Apache-2.0
"""What the commands on a host print of its board."""
