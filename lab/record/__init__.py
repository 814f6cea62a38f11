# SPDX-License-Identifier: Apache-2.0
"""A description of a host and its cards, from which the tests generate that host."""
