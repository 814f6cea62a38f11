# SPDX-License-Identifier: Apache-2.0
"""Plans of moves that make room: a fleet as plain values, goals, and the cheapest plan.

Hosts, a host's groups and instances are given by their index in the :class:`fleet.Fleet`. *Place*
and *room* are free resources for one instance of a flavor.
"""
