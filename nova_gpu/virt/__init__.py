# SPDX-License-Identifier: Apache-2.0
"""The part of nova-gpu in nova-compute: the libvirt driver's overrides, and the code they call.

``driver`` only overrides methods of Nova's driver. ``host_gpus`` makes the objects that the
overrides call. ``periodic`` runs in Nova's periodic task and when the service starts: these runs
are the periods. ``publication`` writes the provider tree for Placement and the report for the
scheduler. ``reporter`` logs and sends notifications. ``diagnostics`` answers Nova's API, and
``counters`` counts for ``nova-gpu exporter``. ``libvirt_errors`` translates libvirt's errors, and
``libvirt_version`` reads its version. ``signatures`` has the tested Nova releases and the
signatures of overrides. ``threads`` runs slow work in parallel.

A card is a GPU of the host. A guest gets devices: whole cards, and vGPUs, which are parts of cards
(mediated devices, virtual functions and MIG instances). A slot is the place of one vGPU: a PCI
function, the vGPU's type, and a number. A group is all cards of one product on a host, or all
vGPUs of one type: one resource provider in Placement. ``unavailable`` names the cards that
instances cannot get, with the reasons.
"""
