# SPDX-License-Identifier: Apache-2.0
"""The functions that nova-compute has run as root, by oslo.privsep. They take addresses alone."""
