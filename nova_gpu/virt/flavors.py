# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for, of those that Nova gives a driver."""

from __future__ import annotations

from nova import exception as nova_exception
from nova import objects

from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest


def request_of_flavor(flavor: objects.Flavor) -> FlavorRequest:
    """What *flavor* asks for; nothing where it came without its extra specs: Nova's object raises
    then, as it cannot read them later, and an instance without GPUs must not fail of that."""
    return request.of((flavor.obj_attr_is_set("extra_specs") and flavor.extra_specs) or {})


def request_of(instance: objects.Instance) -> FlavorRequest:
    """What the flavor of *instance* asks for; nothing where it came without its flavor."""
    try:
        flavor = instance.flavor
    except nova_exception.OrphanedObjectError:
        return request.of({})
    return request_of_flavor(flavor)
