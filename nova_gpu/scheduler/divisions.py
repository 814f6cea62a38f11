# SPDX-License-Identifier: Apache-2.0
"""The division that instances get whose flavor asks for any virtual function without a type.

The flavor's type is ``vf`` then. It has a meaning as long as all the cloud's functions that suit
are one of equally many of their card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from nova import context as nova_context
from nova import objects

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request_group
from nova_gpu.core.vgpu import vgpu
from nova_gpu.scheduler import placement, requested_gpus

_ANY = names.vgpu_type_trait(vgpu.FUNCTION_TYPE)
_OF = f"{_ANY}_OF_"


def named(
    ctxt: nova_context.RequestContext, spec: objects.RequestSpec, extra_specs: Mapping[str, str]
) -> dict[str, str]:
    """Return *extra_specs* with a division wherever they ask for ``vf`` and hosts have several.

    An instance that has functions already gets the division of these, so that no move changes it. A
    flavor that says how much memory a function must have gets any division with that.

    :param extra_specs: those of the flavor, translated for Placement
    :raises InvalidExtraSpec: if the instance has no functions
    """
    specs = dict(extra_specs)
    for group in request_group.parse(extra_specs, names.VGPU_RESOURCE_CLASS).values():
        traits = group.required_traits | group.forbidden_traits
        if _ANY not in group.required_traits or any(
            trait.startswith((_OF, names.TRAIT_MEMORY)) for trait in traits
        ):
            continue
        there = {
            trait
            for trait in placement.known_traits(ctxt, _OF)
            if placement.providers(
                ctxt, dataclasses.replace(group, required_traits=group.required_traits | {trait})
            )
        }
        if len(there) < 2:
            continue
        own = _had(ctxt, spec) & there
        if len(own) != 1:
            words = (trait.removeprefix(names.TRAIT_VGPU_TYPE).lower() for trait in sorted(there))
            raise exception.InvalidExtraSpec(
                names.VGPU_TYPE,
                vgpu.FUNCTION_TYPE,
                "hosts have such functions of several sizes",
                ", ".join(word.replace("_", "-") for word in words),
            )
        specs[f"trait{group.suffix}:{min(own)}"] = "required"
    return specs


def _had(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> frozenset[str]:
    """Return the traits of the divisions of the functions that the instance has."""
    instance = requested_gpus.instance_with_flavor(ctxt, spec)
    resources = instance.resources or () if instance else ()
    uuids = {r.provider_uuid for r in resources if r.resource_class == names.VGPU_RESOURCE_CLASS}
    traits = frozenset[str]().union(*(placement.traits(ctxt, uuid) for uuid in uuids))
    return frozenset(trait for trait in traits if trait.startswith(_OF))
