# SPDX-License-Identifier: Apache-2.0
"""Readers of Nova's records and libvirt's domains for instances with devices of stock Nova."""
