# SPDX-License-Identifier: Apache-2.0
"""The part of nova-gpu in nova-compute: the libvirt driver's overrides, and the code they call.

``driver`` only overrides methods of Nova's driver. ``host_gpus`` connects the packages.
``periodic`` runs in each period. ``publication`` writes the provider tree for Placement and the
report for the scheduler. ``reporter`` logs and sends notifications. ``diagnostics`` and
``counters`` serve other readers. ``libvirt_errors`` translates libvirt's errors, and
``libvirt_version`` reads its version. ``signatures`` has the tested Nova releases and the
signatures of overrides. ``threads`` runs slow work in parallel.
"""
