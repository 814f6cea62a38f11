# SPDX-License-Identifier: Apache-2.0
"""Instances with devices of stock Nova: readers of Nova's records and libvirt's domains, takeover."""
