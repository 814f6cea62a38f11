# SPDX-License-Identifier: Apache-2.0
"""The text about a host's board that the commands on the host print."""
