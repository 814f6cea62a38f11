# SPDX-License-Identifier: Apache-2.0
"""An instance's life with GPUs: its start, its end with the cleaning of cards, and operations that
are refused.
"""
