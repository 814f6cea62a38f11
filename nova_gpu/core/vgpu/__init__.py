# SPDX-License-Identifier: Apache-2.0
"""Cards that are given in parts: types of vGPUs, MIG instances, slots, and how many more a card
has room for.
"""
