# SPDX-License-Identifier: Apache-2.0
"""MIG instances of NVIDIA cards: their list, the device nodes they need, and dividing a card."""
