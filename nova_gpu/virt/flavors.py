# SPDX-License-Identifier: Apache-2.0
"""What Nova gives a driver of a flavor."""

from __future__ import annotations

from collections.abc import Mapping

from nova import exception as nova_exception
from nova import objects


def extra_specs(flavor: objects.Flavor) -> Mapping[str, str]:
    """None where the flavor came without: Nova's object raises then, as it cannot read them later,
    and an instance without GPUs must not fail of that."""
    found: Mapping[str, str] | None = (
        flavor.extra_specs if flavor.obj_attr_is_set("extra_specs") else None
    )
    return found or {}


def extra_specs_of(instance: objects.Instance) -> Mapping[str, str]:
    """The extra specs of an instance, which may have come without its flavor."""
    try:
        flavor = instance.flavor
    except nova_exception.OrphanedObjectError:
        return {}
    return extra_specs(flavor)
