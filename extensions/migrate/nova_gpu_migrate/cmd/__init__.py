# SPDX-License-Identifier: Apache-2.0
"""Commands for hosts of stock Nova: ``nova-gpu shadow``, ``nova-gpu adopt``, ``nova-gpu leave``."""
