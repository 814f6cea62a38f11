# SPDX-License-Identifier: Apache-2.0
"""Contradictions between sysfs, libvirt, Nova's database and Placement, and their repair.

``nova-gpu verify`` and the start of nova-compute report them. Allocations in Placement that a
resize or migration left are corrected in each period.
"""
