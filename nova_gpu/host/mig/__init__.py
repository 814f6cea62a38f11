# SPDX-License-Identifier: Apache-2.0
"""MIG instances of NVIDIA cards: which there are, their capabilities, and dividing a card into
them.
"""
