# SPDX-License-Identifier: Apache-2.0
"""Delivery of devices to guests: one module for each way, behind one interface, for libvirt."""
