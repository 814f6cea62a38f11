# SPDX-License-Identifier: Apache-2.0
"""What acts on many instances: plans and moves, hosts that are drained, instances whose GPUs others
get, servers that wait for GPUs.
"""
