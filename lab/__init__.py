# SPDX-License-Identifier: Apache-2.0
"""The lab shows and tests the product on one machine: a cloud, a VM with cards, a bare Debian."""
