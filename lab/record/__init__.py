# SPDX-License-Identifier: Apache-2.0
"""A recording of a real host and its cards, from which the tests generate an equal host."""
