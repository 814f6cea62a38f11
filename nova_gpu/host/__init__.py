# SPDX-License-Identifier: Apache-2.0
"""Readers of this host. Roots and options are arguments; nothing of Nova is imported.

Outside the packages: a card's product (``products``) and its device nodes (``nodes``), which
several packages read.
"""
