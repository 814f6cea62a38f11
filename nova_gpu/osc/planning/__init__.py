# SPDX-License-Identifier: Apache-2.0
"""What a plan is made of and what is done for it: the fleet as the planner has it, the moves, hosts
that are closed to new instances.
"""
