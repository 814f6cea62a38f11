# SPDX-License-Identifier: Apache-2.0
"""The verdicts of tests of cards, and what follows from them."""
