# SPDX-License-Identifier: Apache-2.0
"""Health of cards, read in every period, and Xids of the kernel's log."""
