# SPDX-License-Identifier: Apache-2.0
"""What flavors and traits of compute nodes say about many instances and hosts."""
