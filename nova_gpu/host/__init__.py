# SPDX-License-Identifier: Apache-2.0
"""Readers of this host. Roots and options come as arguments; nothing of Nova is imported.

Outside the packages: a card's product (``products``) and its device nodes (``nodes``), which
several of them read.
"""
