# SPDX-License-Identifier: Apache-2.0
"""vGPUs, which are mediated devices or SR-IOV virtual functions: reading, creating, removing."""
