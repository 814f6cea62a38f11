# SPDX-License-Identifier: Apache-2.0
"""The exact sets in which alone some cards are given to guests: which of them a guest gets, and
the traits by which Placement tells of them."""
