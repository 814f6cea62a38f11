# SPDX-License-Identifier: Apache-2.0
"""Rules: whether an instance with devices of stock Nova can be taken over, and by which words."""
