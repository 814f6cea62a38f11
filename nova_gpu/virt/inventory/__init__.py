# SPDX-License-Identifier: Apache-2.0
"""The inventory of a host's GPUs: discovery, groups, publication to Placement, and claims.

An inspection reads the host in each period. A card is offered to instances either whole, or in
parts: as vGPUs, which here include virtual functions and MIG instances. A slot identifies one vGPU.
Interchangeable devices form a group, which is one resource provider in Placement: all whole cards
of one product, or all vGPUs of one type on cards of one product. A device with a reason against it
(:class:`nova_gpu.core.unavailability.Unavailable`) is not offered.
"""
