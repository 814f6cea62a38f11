# SPDX-License-Identifier: Apache-2.0
"""Extensions of nova-api: the validators of extra specs, and vendordata about a guest's GPUs."""
