# SPDX-License-Identifier: Apache-2.0
"""Starts and stops of instances with GPUs, release and cleaning of GPUs, and refused operations.

A device is a whole card or a part of one: a vGPU, a virtual function or a MIG instance. A slot
identifies one part, and a delivery is the way in which guests get one kind of device.
"""
