# SPDX-License-Identifier: Apache-2.0
"""Commands on many instances: plans, drained hosts, preemption, servers that wait for GPUs."""
