# SPDX-License-Identifier: Apache-2.0
"""Readers of this host. Roots and options come as arguments; nothing of Nova is imported."""
