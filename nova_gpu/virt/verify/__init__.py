# SPDX-License-Identifier: Apache-2.0
"""Contradictions between sysfs, libvirt, Nova's database and Placement, and their repair.

``nova-gpu verify`` reports them, and the start of the service; allocations that a move left are
repaired.
"""
