# SPDX-License-Identifier: Apache-2.0
"""Distances between GPUs, and the choice among free ones for an instance."""
