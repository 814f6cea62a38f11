# SPDX-License-Identifier: Apache-2.0
"""Instances with devices of stock Nova: readers of their records and domains, and the takeover."""
