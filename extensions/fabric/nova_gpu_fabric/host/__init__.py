# SPDX-License-Identifier: Apache-2.0
"""Access to a host's board with NVSwitches: Fabric Manager, and the module numbers of cards."""
