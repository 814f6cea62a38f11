# SPDX-License-Identifier: Apache-2.0
"""Starts, stops and ends of instances with GPUs, cleaning of GPUs, and refused operations.

A device is a whole card or a part of one: a vGPU, a virtual function or a MIG instance.
"""
