# SPDX-License-Identifier: Apache-2.0
"""Readers of a host's boards: Fabric Manager and its library, and the places of cards."""
