# SPDX-License-Identifier: Apache-2.0
"""Rules: whether an instance can be taken over from stock Nova, or given back."""
