# SPDX-License-Identifier: Apache-2.0
"""Functions that nova-compute runs as root, by oslo.privsep. They take addresses only."""
