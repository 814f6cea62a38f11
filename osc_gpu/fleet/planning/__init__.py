# SPDX-License-Identifier: Apache-2.0
"""Plans of moves that make room: a fleet as plain values, goals, and the cheapest plan."""
