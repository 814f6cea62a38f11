# SPDX-License-Identifier: Apache-2.0
"""Distances between GPUs, and the choice of an instance's GPUs among the free ones."""
