# SPDX-License-Identifier: Apache-2.0
"""The part of vendordata with which a guest licenses its vGPUs."""
