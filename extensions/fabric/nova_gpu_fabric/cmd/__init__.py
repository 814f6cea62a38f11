# SPDX-License-Identifier: Apache-2.0
"""The text about a host's board with NVSwitches that the ``nova-gpu`` commands print."""
