# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with an IOMMU, KVM and graphics cards, on a machine that has none of them.

QEMU emulates all of it without KVM: a q35 machine with VT-d, two NUMA nodes and PCI Express roots
and switches, two-function cards with an NVIDIA id, cards that guests cannot have, and a processor
whose SVM lets guests run in it. The VM has Debian's own kernel and libvirt, and this repository and
its virtual environment as they are outside. ``python -m lab.vm run -- COMMAND`` runs one command in
it.

Three levels have three names: the *machine* that this runs on, the *VM*, which is the compute host,
and the *guests* that libvirt starts in it.
"""
