# SPDX-License-Identifier: Apache-2.0
"""Divided cards: types of vGPUs, MIG instances, slots, and the room of a card."""
