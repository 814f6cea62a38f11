# SPDX-License-Identifier: Apache-2.0
"""The flavor's words as the API checks them, from microversion 2.86 on.

Nova loads this module in nova-api through the entry point group ``nova.api.extra_spec_validators``
and calls :func:`register`. Every value is judged by the reader the scheduler uses, so that what is
accepted here is understood there. The descriptions are reStructuredText, as Nova's own are: the
reference is made of them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import arrangement, condition, consent, preemptible, words


@dataclasses.dataclass
class WordValidator(base.ExtraSpecValidator):  # type: ignore[misc]
    """A validator that asks ``judge``, which raises InvalidExtraSpec for (name, value)."""

    judge: Callable[[str, str], object] = lambda name, value: None

    def validate(self, name: str, value: str) -> None:
        try:
            self.judge(name, value)
        except exception.InvalidExtraSpec as e:
            raise nova_exception.ValidationError(f"Validation failed; {e}") from e


def register() -> Sequence[base.ExtraSpecValidator]:
    return [
        _validator(
            names.GPUS,
            "The instance gets exactly so many GPUs, of one product and on one host.",
            words.ALLOWED_COUNTS,
            lambda name, value: words.parse_count(value),
        ),
        _validator(
            names.GPU_ARCH,
            "The architecture of the GPUs, or of the vGPUs' cards: ``fermi``. Case does not "
            "matter. A GPU of unknown architecture satisfies nothing. Only in a flavor that asks "
            "for either.",
            condition.ALLOWED_NAMES,
            lambda name, value: words.parse_name(name, {name: value}),
        ),
        _validator(
            names.HYPERVISOR,
            "The hypervisor of the host: ``LXC``, or ``QEMU``, for which ``KVM`` is another name.",
            condition.ALLOWED_NAMES,
            lambda name, value: words.parse_name(name, {name: value}),
        ),
        _validator(
            names.MODEL,
            "The model of the GPUs, or of the vGPUs' cards, as ``nova-gpu list`` has it: "
            "``A100 SXM4 80GB``, a name of several words. All of it, or a part with "
            "``<in> A100``. Only in a flavor that asks for either.",
            condition.ALLOWED_NAMES,
            lambda name, value: words.parse_name(name, {name: value}),
        ),
        _validator(
            names.MEMORY_MIB,
            "The memory of each GPU, or vGPU, in MiB. Drivers report a little less than the label "
            "says. A GPU whose memory is not known satisfies nothing. Only in a flavor that asks "
            "for either.",
            condition.ALLOWED_NUMBERS,
            lambda name, value: words.parse_number(name, {name: value}),
        ),
        _word(
            names.TOPOLOGY,
            "What all GPUs of the instance share: a NUMA node, or direct links (NVLink, XGMI) from "
            "one to the other.",
            arrangement.Topology,
        ),
        _word(
            names.TOPOLOGY_POLICY,
            "Whether an instance may come up without that topology. ``required`` unless this says "
            "otherwise. Only with ``gpu:topology``.",
            arrangement.TopologyPolicy,
        ),
        _word(
            names.DISTRIBUTION,
            "Whether instances share few hosts with GPUs, or many; else ``[gpu]distribution`` says "
            "it.",
            arrangement.Distribution,
        ),
        _word(
            names.NEAR,
            "What of the instance its GPUs are to be near: a network function (``nic``) or an NVMe "
            "disk (``nvme``) that it has by ``pci_passthrough:alias`` or by an SR-IOV port. Behind "
            "the same PCIe switch, else on the same PCI root, else on the same NUMA node. Only in "
            "a flavor that asks for whole GPUs.",
            arrangement.Near,
        ),
        _word(
            names.NEAR_POLICY,
            "Whether an instance may come up with a GPU on another NUMA node than all of those. "
            "``preferred`` unless this says otherwise. Only with ``gpu:near``.",
            arrangement.TopologyPolicy,
        ),
        _word(
            names.PEER_ACCESS,
            "Whether the driver in a KVM guest is told that NVIDIA's GPUs reach each other's "
            "memory (GPUDirect's cliques): ``preferred``, where host and product allow it; "
            "``required``, and no guest with several GPUs starts where they do not; ``none``, as "
            "without it, never. Not with ``hw:hide_hypervisor_id``. Only in a flavor that asks for "
            "whole GPUs.",
            arrangement.PeerAccess,
        ),
        _validator(
            names.VGPUS,
            "The instance gets exactly so many vGPUs, parts of cards, all of one type and on one "
            "host.",
            words.ALLOWED_COUNTS,
            lambda name, value: words.parse_count(value, name),
        ),
        _validator(
            names.VGPU_TYPE,
            "The type of the vGPUs, by its id (``nvidia-35``) or its name (``GRID P4-2Q``), of MIG "
            "instances by their profile (``1g.18gb``). Only in a flavor that asks for vGPUs.",
            words.ALLOWED_TYPES,
            lambda name, value: words.parse_vgpu_type({name: value}),
        ),
        _validator(
            names.HEADS,
            "How many displays each vGPU has. Only in a flavor that asks for vGPUs.",
            condition.ALLOWED_NUMBERS,
            lambda name, value: words.parse_number(name, {name: value}),
        ),
        # Flavors of other drivers have this one, and ComputeCapabilitiesFilter judges it.
        _validator(
            names.HYPERVISOR_TYPE,
            "The older spelling of ``hypervisor``.",
            condition.ALLOWED_NAMES,
            condition.check_syntax,
        ),
        _validator(
            names.OPTION_ROM,
            "Whether a KVM guest sees the option ROMs of its GPUs. It does unless this says "
            "``false``.",
            words.ALLOWED_SWITCH,
            lambda name, value: words.parse_switch(name, {name: value}, otherwise=True),
        ),
        _word(
            names.GUEST_TOPOLOGY,
            "Whether a KVM guest sees its GPUs as they are on the host: which are on one NUMA "
            "node, on one root and behind one switch. ``auto``, as without it: where they are on "
            "several nodes or some are behind one switch. ``required``: always, and no guest "
            "starts that cannot have it. ``flat``: never, each has a port on the guest's own root.",
            arrangement.GuestTopology,
        ),
        _validator(
            names.MOVE,
            "How a plan that makes room may move the instance: ``live``, as it runs, which only "
            "vGPUs of KVM guests can; ``cold``, also by shutting it down, moving and starting it; "
            "``none``, not at all. ``live`` unless this says otherwise. A stopped KVM guest may be "
            "moved unless it says ``none``.",
            words.allowed(consent.Consent),
            lambda name, value: consent.parse({name: value}),
        ),
        _validator(
            names.ON_STOP,
            "Whether the instance keeps its GPUs while it is stopped: ``release`` gives them back, "
            "and it gets some of its host again when it is started, or is not started while there "
            "are none. Else its image says it with a property of this name, and else "
            "``[gpu]on_stop`` of its host.",
            words.allowed(words.OnStop),
            lambda name, value: words.parse_on_stop(value),
        ),
        _validator(
            names.ON_STOP_MOVE,
            "Whether an instance that gave its GPUs back, and finds none on its host when it is "
            "started, may go to another host: with ``true`` ``openstack gpu start`` shelves and "
            "unshelves it then. It may not unless this says so.",
            words.ALLOWED_SWITCH,
            lambda name, value: words.parse_switch(name, {name: value}, otherwise=False),
        ),
        _validator(
            names.PREEMPTIBLE,
            "The instance's GPUs may be taken for instances whose flavor does not say this: after "
            "so long a time with them, ``30m``, and after a notice. Only ``openstack gpu preempt`` "
            "takes them.",
            preemptible.ALLOWED_TIMES,
            lambda name, value: preemptible.parse_time(value),
        ),
        _validator(
            names.ON_PREEMPT,
            "What happens to a preemptible instance then: it is stopped (``stop``, as without this "
            "word), for which its flavor must say ``gpu:on_stop=release``, or deleted "
            "(``delete``).",
            words.allowed(preemptible.End),
            lambda name, value: preemptible.parse_end(value),
        ),
    ]


def _word(name: str, description: str, kind: type[enum.StrEnum]) -> WordValidator:
    """Return a validator of a property whose value is a word of *kind*."""
    return _validator(
        name,
        description,
        words.allowed(kind),
        lambda key, text: words.stated(key, {key: text}, kind),
    )


def _validator(
    name: str, description: str, allowed: str, judge: Callable[[str, str], object]
) -> WordValidator:
    return WordValidator(
        name=name,
        description=description,
        value={"type": str, "description": allowed},
        judge=judge,
    )
