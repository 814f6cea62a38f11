# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with an IOMMU, KVM and graphics cards, on a machine that has none of them.

QEMU emulates all of it without KVM: a q35 machine with VT-d, two NUMA nodes and PCI Express roots
and switches, two-function cards with an NVIDIA id, cards that guests cannot have, and a processor
whose SVM lets guests run in it. The VM has Debian's own kernel and libvirt, and this repository and
its virtual environment as they are outside. ``python -m lab.vm run -- COMMAND`` runs one command in
it. What cannot be built raises :class:`lab.cloud.steps.Failed`, with the log.

Three levels have three names: the *machine* that this runs on, the *VM*, which is the compute host,
and the *guests* that libvirt starts in it.
"""

# This machine, seen from the VM by QEMU's user network
OUTSIDE = "10.0.2.2"
# Of a guest's kernel. Its boot costs 10,000 exits. Either of the last two words spares it 16,000
# more, for ports by which the kernel asks all slots of 256 buses. noearly: for an AGP bridge, as it
# takes the processor for an old one of AMD's. lastbus: for roots that ACPI does not name.
GUEST_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 tsc=unstable random.trust_cpu=on mitigations=off"
    " pci=noearly,lastbus=0"
)
