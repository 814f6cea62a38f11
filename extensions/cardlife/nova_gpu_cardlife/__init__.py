# SPDX-License-Identifier: Apache-2.0
"""Cards are offered after a test that they passed: its verdict, and when a card needs another."""
