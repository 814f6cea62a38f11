# SPDX-License-Identifier: Apache-2.0
"""Exact sets of cards, for boards whose cards guests get in sets only: choice and traits."""
