# SPDX-License-Identifier: Apache-2.0
"""nova-gpu's extra specs of flavors, each declared once.

The API's validators, the request, Placement's query, the comparison with a host's cards, the texts
for users, the client's options and the table in the reference are built from these declarations.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from nova_gpu.core import names
from nova_gpu.core.flavor import condition, parsers, placement_policy, preemptible
from nova_gpu.core.flavor.condition import Stated
from nova_gpu.core.vgpu.vgpu import VGPUType

Value = TypeVar("Value")


class About(enum.Enum):
    """The subject of an extra spec. A flavor that does not request that subject may not have it."""

    INSTANCE = enum.auto()
    WHOLE = enum.auto()
    PARTS = enum.auto()
    # Whole GPUs; vGPUs, where the flavor asks for no whole GPUs.
    PRODUCT = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a card or of a vGPU that a :class:`Demand` is compared with."""

    architecture: str | None
    model: str | None
    memory_mib: int | None
    type: VGPUType | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An option of ``openstack gpu flavor create``. Without a ``metavar`` it lists its choices."""

    flag: str
    help: str
    metavar: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Word(Generic[Value]):
    """An extra spec.

    ``parse`` takes the name and the text, and raises InvalidExtraSpec. ``judge`` replaces ``parse``
    in the API's check of a key that other drivers use too. ``meaning`` is reStructuredText.

    A word with a ``trait``, a prefix of trait names, is a demand on a provider. ``fact`` returns
    the property of a card that the demand is compared with. ``holds`` are the texts with which a
    refusal describes a card: with such a property, and without one. ``noun`` replaces the name in a
    summary.
    """

    name: str
    meaning: str
    allowed: str
    parse: Callable[[str, str], Value]
    about: About = About.INSTANCE
    choices: Collection[str] = ()
    judge: Callable[[str, str], object] | None = None
    noun: str | None = None
    trait: str = ""
    fact: Callable[[Facts], object] | None = None
    holds: tuple[str, str] | None = None
    option: Option | None = None

    def of(self, extra_specs: Mapping[str, str]) -> Value | None:
        """Return the value that a flavor gives to this word, ``None`` if it has none.

        :raises InvalidExtraSpec: if the value cannot be used
        """
        text = extra_specs.get(self.name)
        return None if text is None else self.parse(self.name, text)


class Demand(NamedTuple):
    """A word of a flavor, and the condition that it states on a provider."""

    word: Word[Any]
    condition: Stated

    def fact(self, facts: Facts) -> str | None:
        """Return the property of *facts* that this demand is about, ``None`` if unknown."""
        fact = self.word.fact(facts) if self.word.fact else None
        return None if fact is None else str(fact)

    def is_met(self, facts: Facts) -> bool:
        """Return whether *facts* satisfy this demand.

        For a word without a ``fact`` return true: only Placement can check it.
        """
        return self.word.fact is None or self.condition.matches(self.fact(facts))


def demands(extra_specs: Mapping[str, str], *about: About) -> tuple[Demand, ...]:
    """Return the demands that a flavor makes on providers with words of the subjects *about*.

    :raises InvalidExtraSpec: if one cannot be used
    """
    stated = ((word, word.of(extra_specs)) for word in WORDS if word.trait and word.about in about)
    return tuple(Demand(word, value) for word, value in stated if value)


def condition_of(demands: Iterable[Demand], word: Word[Value]) -> Value | None:
    """Return the condition that *word* states among *demands*."""
    stated: Any = next((demand.condition for demand in demands if demand.word is word), None)
    value: Value | None = stated
    return value


def names_about(*about: About) -> tuple[str, ...]:
    """Return the names of the words of the subjects *about*."""
    return tuple(word.name for word in WORDS if word.about in about)


def _choice(
    name: str,
    meaning: str,
    kind: type[parsers.Choice],
    about: About = About.INSTANCE,
    option: Option | None = None,
    *,
    reason: str = "it is not one of its words",
) -> Word[parsers.Choice]:
    """Return a word whose allowed values are the members of *kind*."""
    parse = functools.partial(parsers.parse_word, words=kind, reason=reason)
    return Word(name, meaning, parsers.allowed(kind), parse, about, tuple(kind), option=option)


GPU_ARCH = Word(
    names.GPU_ARCH,
    "The architecture of the GPUs, or of the vGPUs' cards: ``fermi``. Case does not matter. A GPU "
    "of unknown architecture satisfies nothing. Only in a flavor that asks for either.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    About.PRODUCT,
    noun="architecture",
    trait=names.TRAIT_ARCHITECTURE,
    fact=lambda facts: facts.architecture,
    option=Option("--arch", "Their architecture (fermi, or 's!= fermi', ...)", "<name>"),
)
HYPERVISOR = Word(
    names.HYPERVISOR,
    "The hypervisor of the host: ``LXC``, or ``QEMU``, for which ``KVM`` is another name.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    noun="hypervisor",
    option=Option("--hypervisor", "LXC or KVM (or 's== LXC', ...)", "<name>"),
)
# Flavors of other drivers have this one, and ComputeCapabilitiesFilter judges it.
HYPERVISOR_TYPE = Word(
    names.HYPERVISOR_TYPE,
    "The older spelling of ``hypervisor``.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    judge=condition.check_syntax,
)
MODEL = Word(
    names.MODEL,
    "The model of the GPUs, or of the vGPUs' cards, as ``nova-gpu list`` has it: ``A100 SXM4 "
    "80GB``, a name of several words. All of it, or a part with ``<in> A100``. Only in a flavor "
    "that asks for either.",
    condition.ALLOWED_NAMES,
    parsers.parse_name,
    About.PRODUCT,
    trait=names.TRAIT_MODEL,
    fact=lambda facts: facts.model,
    holds=("a {}", "a GPU of no known name"),
    option=Option("--model", "Their model ('Tesla M2090', or '<in> h100', ...)", "<name>"),
)
MEMORY_MIB = Word(
    names.MEMORY_MIB,
    "The memory of each GPU, or vGPU, in MiB. Drivers report a little less than the label says. A "
    "GPU whose memory is not known satisfies nothing. Only in a flavor that asks for either.",
    condition.ALLOWED_NUMBERS,
    condition.parse_number,
    About.PRODUCT,
    trait=names.TRAIT_MEMORY,
    fact=lambda facts: facts.memory_mib,
    holds=("a GPU whose memory is {} MiB", "a GPU whose memory is unknown"),
    option=Option("--memory", "Memory of each in MiB (40960, or '>= 40960', ...)", "<MiB>"),
)
VGPU_TYPE = Word(
    names.VGPU_TYPE,
    "The type of the vGPUs, by its id (``nvidia-35``) or its name (``GRID P4-2Q``), of MIG "
    "instances by their profile (``1g.18gb``). Only in a flavor that asks for vGPUs.",
    parsers.ALLOWED_TYPES,
    parsers.parse_vgpu_type,
    About.PARTS,
    noun="type",
    option=Option("--vgpu-type", "Name or id of their type (nvidia-35, ...)", "<name>"),
)
HEADS = Word(
    names.HEADS,
    "How many displays each vGPU has. Only in a flavor that asks for vGPUs.",
    condition.ALLOWED_NUMBERS,
    condition.parse_number,
    About.PARTS,
    trait=names.TRAIT_HEADS,
    fact=lambda facts: facts.type and facts.type.heads,
    option=Option("--heads", "Displays of each vGPU (2, or '>= 2', ...)", "<n>"),
)
OPTION_ROM = Word(
    names.OPTION_ROM,
    "Whether a KVM guest sees the option ROMs of its GPUs. It does unless this says ``false``.",
    parsers.ALLOWED_SWITCH,
    lambda name, text: parsers.parse_switch(name, {name: text}, otherwise=True),
)
GUEST_TOPOLOGY = _choice(
    names.GUEST_TOPOLOGY,
    "Whether a KVM guest sees its GPUs as they are on the host: which are on one NUMA node, on one "
    "root and behind one switch. ``auto``, as without it: where they are on several nodes or some "
    "are behind one switch. ``required``: always, and no guest starts that cannot have it. "
    "``flat``: never, each has a port on the guest's own root.",
    placement_policy.GuestTopology,
)
MOVE = _choice(
    names.MOVE,
    "How a plan that makes room may move the instance: ``live``, as it runs, which only vGPUs of "
    "KVM guests can; ``cold``, also by shutting it down, moving and starting it; ``none``, not at "
    "all. ``live`` unless this says otherwise. A stopped KVM guest may be moved unless it says "
    "``none``.",
    parsers.Consent,
    reason="it does not say how an instance may be moved",
)
ON_STOP = Word(
    names.ON_STOP,
    "Whether the instance keeps its GPUs while it is stopped: ``release`` gives them back, and it "
    "gets some of its host again when it is started, or is not started while there are none. Else "
    "its image says it with a property of this name, and else ``[gpu]on_stop`` of its host.",
    parsers.allowed(parsers.OnStop),
    lambda name, text: parsers.parse_on_stop(text),
)
ON_STOP_MOVE = Word(
    names.ON_STOP_MOVE,
    "Whether an instance that gave its GPUs back, and finds none on its host when it is started, "
    "may go to another host: with ``true`` ``openstack gpu start`` shelves and unshelves it then. "
    "It may not unless this says so.",
    parsers.ALLOWED_SWITCH,
    lambda name, text: parsers.parse_switch(name, {name: text}, otherwise=False),
)

# In the order of the reference and of refusals
WORDS: tuple[Word[Any], ...] = (
    Word(
        names.GPUS,
        "The instance gets exactly so many GPUs, of one product and on one host.",
        parsers.ALLOWED_COUNTS,
        lambda name, text: parsers.parse_count(text, name),
    ),
    *(GPU_ARCH, HYPERVISOR, MODEL, MEMORY_MIB),
    _choice(
        names.TOPOLOGY,
        "What all GPUs of the instance share: a NUMA node, or direct links (NVLink, XGMI) from one "
        "to the other.",
        placement_policy.Topology,
        About.WHOLE,
        Option(
            "--topology",
            "What all GPUs of an instance have in common: a NUMA node, or direct links",
        ),
    ),
    _choice(
        names.TOPOLOGY_POLICY,
        "Whether an instance may come up without that topology. ``required`` unless this says "
        "otherwise. Only with ``gpu:topology``.",
        placement_policy.TopologyPolicy,
        About.WHOLE,
    ),
    _choice(
        names.DISTRIBUTION,
        "Whether instances share few hosts with GPUs, or many; else ``[gpu]distribution`` says it.",
        placement_policy.Distribution,
        About.WHOLE,
        Option(
            "--distribution",
            "Whether instances share few hosts with GPUs (pack) or are on many (spread)",
        ),
    ),
    _choice(
        names.NEAR,
        "What of the instance its GPUs are to be near: a network function (``nic``) or an NVMe "
        "disk (``nvme``) that it has by ``pci_passthrough:alias`` or by an SR-IOV port. Behind the "
        "same PCIe switch, else on the same PCI root, else on the same NUMA node. Only in a flavor "
        "that asks for whole GPUs.",
        placement_policy.Near,
        About.WHOLE,
        Option(
            "--near",
            "Which of the instance's own devices its GPUs are to be near: network functions or "
            "disks that it has by pci_passthrough:alias or by a port",
        ),
    ),
    _choice(
        names.NEAR_POLICY,
        "Whether an instance may come up with a GPU on another NUMA node than all of those. "
        "``preferred`` unless this says otherwise. Only with ``gpu:near``.",
        placement_policy.TopologyPolicy,
        About.WHOLE,
        Option(
            "--near-policy",
            "Whether an instance whose GPUs cannot be near them is refused (required) or not "
            "(default: preferred)",
        ),
    ),
    _choice(
        names.PEER_ACCESS,
        "Whether the driver in a KVM guest is told that NVIDIA's GPUs reach each other's memory "
        "(GPUDirect's cliques): ``preferred``, where host and product allow it; ``required``, and "
        "no guest with several GPUs starts where they do not; ``none``, as without it, never. Not "
        "with ``hw:hide_hypervisor_id``. Only in a flavor that asks for whole GPUs.",
        placement_policy.PeerAccess,
        About.WHOLE,
    ),
    Word(
        names.VGPUS,
        "The instance gets exactly so many vGPUs, parts of cards, all of one type and on one host.",
        parsers.ALLOWED_COUNTS,
        lambda name, text: parsers.parse_count(text, name),
        About.PARTS,
    ),
    *(VGPU_TYPE, HEADS, HYPERVISOR_TYPE, OPTION_ROM, GUEST_TOPOLOGY, MOVE, ON_STOP, ON_STOP_MOVE),
    Word(
        names.PREEMPTIBLE,
        "The instance's GPUs may be taken for instances whose flavor does not say this: after so "
        "long a time with them, ``30m``, and after a notice. Only ``openstack gpu preempt`` takes "
        "them.",
        preemptible.ALLOWED_TIMES,
        lambda name, text: preemptible.parse_time(text),
        option=Option(
            "--preemptible",
            "openstack gpu preempt may take an instance's GPUs for others, when it has had them so "
            "long (30m, 2h, ...)",
            "<least-time>",
        ),
    ),
    Word(
        names.ON_PREEMPT,
        "What happens to a preemptible instance then: it is stopped (``stop``, as without this "
        "word), for which its flavor must say ``gpu:on_stop=release``, or deleted (``delete``).",
        parsers.allowed(preemptible.End),
        lambda name, text: preemptible.parse_end(text),
        choices=tuple(preemptible.End),
        option=Option(
            "--on-preempt",
            "What happens to a preempted instance: it is stopped, and gives its GPUs back as at "
            "each of its stops (default), or deleted",
        ),
    ),
)
NAMES = tuple(word.name for word in WORDS)
# Those whose values are names that GPUs are compared with
OF_NAMES = frozenset(
    word.name for word in WORDS if word.allowed in (condition.ALLOWED_NAMES, parsers.ALLOWED_TYPES)
)
