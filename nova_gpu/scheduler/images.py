# SPDX-License-Identifier: Apache-2.0
"""What an image says of its guests that GPUs depend on."""

from __future__ import annotations

from nova import objects

from nova_gpu.core import machine_type
from nova_gpu.core.flavor import request_group


def names_gpus(spec: objects.RequestSpec) -> bool:
    """Whether the image requires traits that may be those of GPUs"""
    image = spec.image if "image" in spec else None
    if image is None or "properties" not in image:
        return False
    return any(map(request_group.may_be_a_gpus, image.properties.get("traits_required", ())))


def unfit_machine_type(spec: objects.RequestSpec) -> str | None:
    """The machine type that the image asks for, where it is one that cannot have whole cards.

    ``None`` too where the image says nothing: then the host's option counts, which nobody knows
    here, and the host judges.
    """
    image = spec.image if "image" in spec else None
    if image is None or "properties" not in image:
        return None
    stated: str | None = image.properties.get("hw_machine_type")
    return stated if stated and not machine_type.has_pci_express(stated) else None
