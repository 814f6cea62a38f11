# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs and of vGPUs in Placement: inventories and traits."""
