# SPDX-License-Identifier: Apache-2.0
"""Mediated devices and SR-IOV virtual functions in sysfs: types, making and removing them."""
