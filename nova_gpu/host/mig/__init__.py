# SPDX-License-Identifier: Apache-2.0
"""MIG instances of NVIDIA cards: the layout, their capabilities, and dividing a card."""
