# SPDX-License-Identifier: Apache-2.0
"""The inventory of a compute host: found, grouped, published to Placement, drawn by claims."""
