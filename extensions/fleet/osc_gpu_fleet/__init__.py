# SPDX-License-Identifier: Apache-2.0
"""Commands on many instances: moves that make room, drains, preemption, and waits for GPUs.

A *board* is a group whose GPUs NVSwitches join, so that instances get them in fixed sets only. Its
GPUs are called *modules*, by their number on the board.
"""
