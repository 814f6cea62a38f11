# SPDX-License-Identifier: Apache-2.0
"""The delivery of devices to libvirt's guests: one interface, and a module for each kind."""
