# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu shadow``, ``adopt`` and ``leave``, about instances with devices of stock Nova."""
