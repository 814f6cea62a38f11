# SPDX-License-Identifier: Apache-2.0
"""What an instance holds of vGPUs, compared with what its flavor asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_gpu.core import names
from nova_gpu.core.flavor import request_group, vgpu_request
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.vgpu_request import VGPURequest
from nova_gpu.core.scheduling.stats import Divided
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup


def mismatch(extra_specs: Mapping[str, str], held: Sequence[VGPUType]) -> str | None:
    """Why the vGPUs of these types are not what the flavor asks for, or ``None`` where they are.

    :param held: the type of each of them
    :raises InvalidExtraSpec: where the flavor cannot be understood
    """
    asked = vgpu_request.parse(extra_specs)
    if asked is None:
        # One that says resources:VGPU alone may have some of Nova's own, which we do not see.
        if held and not request_group.ask_for_gpus(extra_specs, names.VGPU_RESOURCE_CLASS):
            return f"the instance holds {len(held)} vGPUs, and its flavor asks for none"
        return None
    if asked.count != len(held):
        return f"the flavor asks for {asked.count} vGPUs, and the instance holds {len(held)}"
    for facts in held:
        if asked.type is not None and not is_type(asked.type, facts):
            return f"the flavor asks for vGPUs with {names.VGPU_TYPE} {asked.type}, not {facts.id}"
    return None


def other_facts(extra_specs: Mapping[str, str], held: Sequence[VGPUGroup]) -> str | None:
    """A mismatch in what drivers and NVML may tell in one run of the service and not in the next.
    So it is judged only when the instance is given its vGPUs.

    :param held: the group of each of them
    """
    asked = vgpu_request.parse(extra_specs)
    if asked is None:
        return None
    for group in held:
        facts = {
            names.GPU_ARCH: group.product.architecture,
            names.MODEL: group.product.name,
            names.MEMORY_MIB: group.facts.memory_mib,
            names.HEADS: group.facts.heads,
        }
        for key, stated, _ in asked.of_each():
            fact = None if facts[key] is None else str(facts[key])
            if not stated.matches(fact):
                return (
                    f"the flavor asks for vGPUs with {key} {stated}, and of {group.facts.id} it is "
                    f"{fact or 'not known'}"
                )
    return None


def most_free(asked: VGPURequest, divided: Divided) -> int:
    """How many vGPUs of a type that *asked* takes a host has room for, whatever its cards are.

    Types share cards, so that the numbers of several do not add up.
    """
    known = divided.facts or ((None, None),) * len(divided.vgpus)
    fitting = (
        count
        for (type_id, name, count), (memory_mib, heads) in zip(divided.vgpus, known, strict=True)
        if _takes(asked, VGPUType(type_id, name, memory_mib, heads))
    )
    return max(fitting, default=0)


def _takes(asked: VGPURequest, facts: VGPUType) -> bool:
    return (
        (asked.type is None or is_type(asked.type, facts))
        and (asked.memory_mib is None or asked.memory_mib.matches(facts.memory_mib))
        and (asked.heads is None or asked.heads.matches(facts.heads))
    )


def is_type(condition: Condition, facts: VGPUType) -> bool:
    """A type goes by its id and by its name."""
    return condition.matches(facts.id) or condition.matches(facts.name)
