# SPDX-License-Identifier: Apache-2.0
"""Owners of devices, known from libvirt's domains, Nova's database and starts in this process."""
