# SPDX-License-Identifier: Apache-2.0
"""The inventory of a host's GPUs: discovery, groups, publication to Placement, and claims."""
