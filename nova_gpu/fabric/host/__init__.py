# SPDX-License-Identifier: Apache-2.0
"""The readers of a host's board: Fabric Manager with its library, and the modules of cards."""
