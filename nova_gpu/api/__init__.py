# SPDX-License-Identifier: Apache-2.0
"""What nova-api loads: the validators of extra specs, and vendordata about a guest's GPUs."""
