# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs and of vGPUs as Placement's facts: inventories and traits."""
