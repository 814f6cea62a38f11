# SPDX-License-Identifier: Apache-2.0
"""Unified limits of GPUs, for ``virt`` and ``scheduler``: what Nova's API does not enforce."""
