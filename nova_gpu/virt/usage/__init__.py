# SPDX-License-Identifier: Apache-2.0
"""Owners of devices, known from libvirt's domains, Nova's database and starts in this process.

A domain names a device if the XML of its definition has it. Nova's database counts a device for an
instance if it assigns the device to the instance, or to either side of its unfinished move.
"""
