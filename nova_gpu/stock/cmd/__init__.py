# SPDX-License-Identifier: Apache-2.0
"""Commands about instances with devices of stock Nova: ``nova-gpu shadow``, ``nova-gpu adopt``."""
