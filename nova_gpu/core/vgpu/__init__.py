# SPDX-License-Identifier: Apache-2.0
"""Cards given in parts: types of vGPUs, MIG instances, slots, and the room of a card."""
