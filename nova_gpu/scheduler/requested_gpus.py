# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a request to the scheduler asks for, by its flavor and its image."""

from __future__ import annotations

import dataclasses
from typing import Any

from nova import objects

from nova_gpu.core import names
from nova_gpu.core.flavor import request, request_group
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.guest import machine_types


@dataclasses.dataclass(frozen=True, slots=True)
class Requested:
    """The one reading of a RequestSpec that all judge by.

    ``unfit_machine_type`` is the image's, where it is one that cannot have whole cards; ``None``
    too where the image says nothing: then the host's option counts, which is unknown here, and the
    host judges. ``image_names_gpus`` says that the image requires traits that may be GPUs',
    ``is_hidden`` that it has its guest not see that it is one. ``pci_devices``: how many of Nova's
    own passthrough the flavor and the ports ask for, ``None`` where the request does not say.
    """

    flavor: FlavorRequest
    unfit_machine_type: str | None
    image_names_gpus: bool
    pci_devices: int | None = None
    is_hidden: bool = False


def from_spec(spec: objects.RequestSpec) -> Requested:
    """Return what *spec* asks for.

    Nothing where its flavor or its image came without properties.
    """
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


def _pci_devices(spec: objects.RequestSpec) -> int | None:
    if "pci_requests" not in spec or spec.pci_requests is None:
        return None
    return sum(int(flavor_request.count) for flavor_request in spec.pci_requests.requests)
