# SPDX-License-Identifier: Apache-2.0
"""Where sysfs, libvirt, Nova's database and Placement contradict each other about GPUs, and what is
repaired: ``nova-gpu verify``, the start of the service, allocations that a move left.
"""
