# SPDX-License-Identifier: Apache-2.0
"""What shows and tests the product on one machine: a cloud, a VM with cards and a bare Debian."""
