# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are near each other, and which of the free ones an instance gets."""
