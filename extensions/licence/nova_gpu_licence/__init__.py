# SPDX-License-Identifier: Apache-2.0
"""Licences of vGPUs: guests read the token of their project's from Nova's vendordata."""
