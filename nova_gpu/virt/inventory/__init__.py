# SPDX-License-Identifier: Apache-2.0
"""What a compute host has and offers: looked up, grouped, published to Placement, and drawn from
by Nova's claims.
"""
