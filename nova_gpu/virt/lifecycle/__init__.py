# SPDX-License-Identifier: Apache-2.0
"""Starts, stops and ends of instances with GPUs, cleaning of GPUs, and refused operations."""
