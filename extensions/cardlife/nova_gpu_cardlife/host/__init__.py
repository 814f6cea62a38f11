# SPDX-License-Identifier: Apache-2.0
"""Tests of a host's cards, and their records."""
