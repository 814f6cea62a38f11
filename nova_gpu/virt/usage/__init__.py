# SPDX-License-Identifier: Apache-2.0
"""Who has which device, by libvirt's domains, by Nova's database, and by what this process has
claimed and started: a ledger, read as one snapshot.
"""
