# SPDX-License-Identifier: Apache-2.0
"""Exact sets in which guests get some cards: the choice of one, and their traits in Placement."""
