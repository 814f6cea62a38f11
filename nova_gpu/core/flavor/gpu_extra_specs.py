# SPDX-License-Identifier: Apache-2.0
"""nova-gpu's extra specs of flavors, each declared once.

The API's validators, the request, Placement's query, the comparison with a host's cards, the texts
for users, the client's options and the table in the reference are built from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nova_gpu.core import exception, extensions, names
from nova_gpu.core.flavor import condition, parsers, placement_policy
from nova_gpu.core.flavor.condition import Stated
from nova_gpu.core.flavor.declaration import About, ExtraSpec, Facts, Option, choice


class Demand(NamedTuple):
    """An extra spec of a flavor, and the condition that it states on a provider of GPUs."""

    word: ExtraSpec[Any]
    condition: Stated

    def fact(self, facts: Facts) -> str | None:
        """Return the property of *facts* that this demand is about, ``None`` if unknown."""
        fact = self.word.fact(facts) if self.word.fact else None
        return None if fact is None else str(fact)

    def is_met(self, facts: Facts) -> bool:
        """Return whether *facts* satisfy this demand.

        Return true if the extra spec has no ``fact``: only Placement can check it.
        """
        return self.word.fact is None or self.condition.matches(self.fact(facts))


def demands(extra_specs: Mapping[str, str], *about: About) -> tuple[Demand, ...]:
    """Return the demands that a flavor makes by extra specs with the subjects *about*."""
    stated = ((word, word.of(extra_specs)) for word in WORDS if word.trait and word.about in about)
    return tuple(Demand(word, value) for word, value in stated if value)


def contradictions(extra_specs: Mapping[str, str]) -> Iterator[exception.InvalidExtraSpec]:
    """Yield an error for each extra spec of an extension that contradicts others of the flavor."""
    for word in OF_EXTENSIONS:
        if word.agree and word.name in extra_specs:
            try:
                word.agree(extra_specs)
            except exception.InvalidExtraSpec as error:
                yield error


def suffixes(extra_specs: Mapping[str, str]) -> str:
    """Return what extensions add to the summary of a flavor."""
    stated = (word for word in OF_EXTENSIONS if word.suffix and word.name in extra_specs)
    return "".join(word.suffix(extra_specs) for word in stated if word.suffix)


def names_about(*about: About) -> tuple[str, ...]:
    return tuple(word.name for word in WORDS if word.about in about)


GPU_ARCH = ExtraSpec(
    names.GPU_ARCH,
    "The architecture of the GPUs, or of the vGPUs' cards: ``fermi``. Case does not matter. A GPU "
    "of unknown architecture never fits. Only in a flavor that asks for GPUs or vGPUs.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    About.PRODUCT,
    noun="architecture",
    trait=names.TRAIT_ARCHITECTURE,
    fact=lambda facts: facts.architecture,
    option=Option("--arch", "Architecture of the GPUs (fermi, or 's!= fermi', ...)", "<name>"),
)
HYPERVISOR = ExtraSpec(
    names.HYPERVISOR,
    "The hypervisor of the host: ``LXC``, or ``QEMU``, for which ``KVM`` is another name.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    noun="hypervisor",
    option=Option("--hypervisor", "Hypervisor of the host (LXC or KVM, 's== LXC', ...)", "<name>"),
)
# Flavors for other drivers have this one too, and ComputeCapabilitiesFilter judges it.
HYPERVISOR_TYPE = ExtraSpec(
    names.HYPERVISOR_TYPE,
    "The older spelling of ``hypervisor``.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    judge=condition.check_syntax,
)
MODEL = ExtraSpec(
    names.MODEL,
    "The model of the GPUs, or of the vGPUs' cards, as ``nova-gpu list`` has it: ``A100 SXM4 "
    "80GB``, a name of several words. The whole name, or a part of it with ``<in> A100``. Only in "
    "a flavor that asks for GPUs or vGPUs.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    About.PRODUCT,
    judge=parsers.judge_name,
    trait=names.TRAIT_MODEL,
    fact=lambda facts: facts.model,
    holds=("a {}", "a GPU of no known name"),
    option=Option("--model", "Model of the GPUs ('Tesla M2090', or '<in> h100', ...)", "<name>"),
)
MEMORY_MIB = ExtraSpec(
    names.MEMORY_MIB,
    "The memory of each GPU or vGPU in MiB. Drivers report a little less than the label says. A "
    "GPU with unknown memory never fits. Only in a flavor that asks for GPUs or vGPUs.",
    condition.ALLOWED_NUMBERS,
    condition.parse_number,
    About.PRODUCT,
    trait=names.TRAIT_MEMORY,
    fact=lambda facts: facts.memory_mib,
    holds=("a GPU whose memory is {} MiB", "a GPU whose memory is unknown"),
    option=Option(
        "--memory", "Memory of each GPU or vGPU in MiB (40960, or '>= 40960', ...)", "<MiB>"
    ),
)
VGPU_TYPE = ExtraSpec(
    names.VGPU_TYPE,
    "The type of the vGPUs, by its id (``nvidia-35``) or its name (``GRID P4-2Q``); for MIG "
    "instances their profile (``1g.18gb``). Only in a flavor that asks for vGPUs.",
    parsers.ALLOWED_TYPES,
    parsers.parse_vgpu_type,
    About.PARTS,
    noun="type",
    option=Option("--vgpu-type", "Name or id of the vGPUs' type (nvidia-35, ...)", "<name>"),
)
HEADS = ExtraSpec(
    names.HEADS,
    "How many displays each vGPU has. Only in a flavor that asks for vGPUs.",
    condition.ALLOWED_NUMBERS,
    condition.parse_number,
    About.PARTS,
    trait=names.TRAIT_HEADS,
    fact=lambda facts: facts.type and facts.type.heads,
    option=Option("--heads", "Displays of each vGPU (2, or '>= 2', ...)", "<n>"),
)
VGPU_PARAMS = ExtraSpec(
    names.VGPU_PARAMS,
    "Parameters of NVIDIA's vGPUs: ``enable_uvm=1`` (unified memory), ``enable_debugging=1``, "
    "``enable_profiling=1``, ``frame_rate_limiter=0``. The host's ``[gpu]vgpu_params`` permits "
    "them. NVIDIA's driver migrates no running guest with one of the first three. Only in a flavor "
    "that asks for vGPUs.",
    parsers.ALLOWED_PARAMS,
    parsers.parse_params,
    About.PARTS,
    option=Option(
        "--vgpu-params", "Parameters of the vGPUs (enable_uvm=1, ...)", "<name=value,...>"
    ),
)
OPTION_ROM = ExtraSpec(
    names.OPTION_ROM,
    "Whether a KVM guest sees the option ROMs of its GPUs. It does unless this says ``false``.",
    parsers.ALLOWED_SWITCH,
    lambda name, text: parsers.parse_switch(name, {name: text}, otherwise=True),
    choices=parsers.SWITCH,
    option=Option("--option-rom", "Whether a KVM guest sees the GPUs' option ROMs (default: true)"),
)
GUEST_TOPOLOGY = choice(
    names.GUEST_TOPOLOGY,
    "Whether a KVM guest sees which of its GPUs are on one NUMA node, on one PCI root and behind "
    "one switch of the host. ``auto``, the default: if they are on several nodes or some are "
    "behind one switch. ``required``: always; a guest that cannot have it does not start. "
    "``flat``: never; each GPU has a port on the guest's own root.",
    placement_policy.GuestTopology,
    option=Option(
        "--guest-topology",
        "Whether a KVM guest sees which of its GPUs are on one NUMA node or switch (default: auto)",
    ),
)
ON_STOP = ExtraSpec(
    names.ON_STOP,
    "Whether the instance keeps its GPUs while it is stopped. With ``release`` it gives them back; "
    "a start gives it free GPUs of its host, and fails while there are none. Without this word the "
    "image's property of this name decides, and without that ``[gpu]on_stop`` of the host.",
    parsers.allowed(parsers.OnStop),
    lambda name, text: parsers.parse_on_stop(text),
    choices=tuple(parsers.OnStop),
    option=Option(
        "--on-stop",
        "Whether a stopped instance keeps its GPUs or gives them back (default: as its image or "
        "its host says, mostly keep)",
    ),
)
OF_EXTENSIONS: tuple[ExtraSpec[Any], ...] = tuple(
    word for words in extensions.load("nova_gpu.extra_specs") for word in words
)
# In the order of the reference and of refusals
WORDS: tuple[ExtraSpec[Any], ...] = (
    ExtraSpec(
        names.GPUS,
        "The exact number of the instance's GPUs, which are of one product and on one host.",
        parsers.ALLOWED_COUNTS,
        lambda name, text: parsers.parse_count(text, name),
    ),
    *(GPU_ARCH, HYPERVISOR, MODEL, MEMORY_MIB),
    choice(
        names.TOPOLOGY,
        "What all GPUs of the instance share: a NUMA node, or direct links (NVLink, XGMI) from one "
        "to the other.",
        placement_policy.Topology,
        About.WHOLE,
        Option(
            "--topology",
            "What all GPUs of an instance share: a NUMA node, or direct links (default: any)",
        ),
    ),
    choice(
        names.TOPOLOGY_POLICY,
        "Whether an instance is refused without that topology (``required``, the default) or not "
        "(``preferred``). Only with ``gpu:topology``.",
        placement_policy.TopologyPolicy,
        About.WHOLE,
        Option(
            "--topology-policy",
            "Whether an instance is refused without the GPUs of --topology (default: required)",
        ),
    ),
    choice(
        names.DISTRIBUTION,
        "Whether instances share few hosts with GPUs (``pack``) or use many (``spread``). Without "
        "this word ``[gpu]distribution`` decides.",
        placement_policy.Distribution,
        About.WHOLE,
        Option(
            "--distribution",
            "Whether instances share few hosts with GPUs (pack) or use many (spread) (default: as "
            "[gpu]distribution of nova-scheduler says)",
        ),
    ),
    choice(
        names.NEAR,
        "The devices of the instance that its GPUs are to be near: network functions (``nic``) or "
        "NVMe disks (``nvme``) that it has by ``pci_passthrough:alias`` or by an SR-IOV port. Near "
        "is behind the same PCIe switch, else on the same PCI root, else on the same NUMA node. "
        "Only in a flavor that asks for whole GPUs.",
        placement_policy.Near,
        About.WHOLE,
        Option(
            "--near",
            "The devices of the instance that its GPUs are to be near: network functions or disks "
            "that it has by pci_passthrough:alias or by a port",
        ),
    ),
    choice(
        names.NEAR_POLICY,
        "Whether an instance is refused if a GPU is on another NUMA node than all of these devices "
        "(``required``) or not (``preferred``, the default). Only with ``gpu:near``.",
        placement_policy.TopologyPolicy,
        About.WHOLE,
        Option(
            "--near-policy",
            "Whether an instance is refused if its GPUs cannot be near the devices of --near "
            "(required) or not (default: preferred)",
        ),
    ),
    choice(
        names.PEER_ACCESS,
        "Whether the driver in a KVM guest learns that NVIDIA's GPUs can access each other's "
        "memory (GPUDirect's cliques). ``preferred``: if host and product permit it. ``required``: "
        "always; a guest with several GPUs does not start on a host that does not permit it. "
        "``none``, the default: never. Not with ``hw:hide_hypervisor_id``. Only in a flavor that "
        "asks for whole GPUs.",
        placement_policy.PeerAccess,
        About.WHOLE,
        Option(
            "--peer-access",
            "Whether a KVM guest's driver learns that GPUs can access each other's memory "
            "(default: none)",
        ),
    ),
    ExtraSpec(
        names.VGPUS,
        "The exact number of the instance's vGPUs (parts of cards), all of one type and on one "
        "host.",
        parsers.ALLOWED_COUNTS,
        lambda name, text: parsers.parse_count(text, name),
        About.PARTS,
    ),
    *(VGPU_TYPE, HEADS, VGPU_PARAMS, HYPERVISOR_TYPE, OPTION_ROM, GUEST_TOPOLOGY, ON_STOP),
    *OF_EXTENSIONS,
)
NAMES = tuple(word.name for word in WORDS)
# Words whose values are names that GPUs are compared with
OF_NAMES = frozenset(
    word.name for word in WORDS if word.allowed in (condition.ALLOWED_NAMES, parsers.ALLOWED_TYPES)
)
