# SPDX-License-Identifier: Apache-2.0
"""Owners of devices, by libvirt's domains, Nova's database and this process: a ledger."""
