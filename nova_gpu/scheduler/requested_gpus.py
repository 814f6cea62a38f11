# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a scheduler request (RequestSpec) requests, by its flavor and its image."""

from __future__ import annotations

import dataclasses
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import names
from nova_gpu.core.flavor import request, request_group
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.guest import machine_types


@dataclasses.dataclass(frozen=True, slots=True)
class Requested:
    """The GPU request in a RequestSpec, for the request filters, the filter and the weigher.

    ``unfit_machine_type`` is the image's machine type if guests with it cannot have whole cards.
    It is ``None`` for any other type, and if the image states none: then the host's option decides,
    which is unknown here, and the host checks it. ``image_names_gpus``: whether the image requires
    traits that a group of GPUs may have. ``is_hidden``: whether the image hides the hypervisor from
    the guest. ``pci_devices`` is the number of devices of Nova's own passthrough that the flavor
    and the ports request, ``None`` if the RequestSpec does not contain it.
    """

    flavor: FlavorRequest
    unfit_machine_type: str | None
    image_names_gpus: bool
    pci_devices: int | None = None
    is_hidden: bool = False


def from_spec(spec: objects.RequestSpec) -> Requested:
    """Return the GPU request in *spec*."""
    specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    image = spec.image if "image" in spec else None
    properties: Any = image.properties if image is not None and "properties" in image else {}
    stated = properties.get("hw_machine_type")
    return Requested(
        request.of(specs),
        stated if stated and not machine_types.has_pci_express(stated) else None,
        any(map(request_group.may_be_a_gpus, properties.get("traits_required", ()))),
        _pci_devices(spec),
        bool(properties.get(names.IMAGE_HIDDEN)),
    )


def instance_with_flavor(
    ctxt: nova_context.RequestContext, spec: objects.RequestSpec
) -> objects.Instance | None:
    """Return the instance of *spec* with its flavor and resources.

    Return ``None`` if it exists not yet, or has another flavor than *spec* asks for.
    """
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(ctxt, spec.instance_uuid)
        if mapping.cell_mapping is None:
            return None
        with nova_context.target_cell(ctxt, mapping.cell_mapping) as in_cell:
            instance = objects.Instance.get_by_uuid(
                in_cell, spec.instance_uuid, expected_attrs=["flavor", "resources"]
            )
    except (nova_exception.InstanceMappingNotFound, nova_exception.InstanceNotFound):
        return None
    return instance if instance.flavor.flavorid == spec.flavor.flavorid else None


def _pci_devices(spec: objects.RequestSpec) -> int | None:
    if "pci_requests" not in spec or spec.pci_requests is None:
        return None
    return sum(int(flavor_request.count) for flavor_request in spec.pci_requests.requests)
