# SPDX-License-Identifier: Apache-2.0
"""What this host has. Roots and options come as arguments; nothing of Nova."""
