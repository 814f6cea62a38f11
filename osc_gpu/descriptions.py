# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a flavor's GPUs for other programs: plain properties that Nova does not read.

Nova's API accepts any property of a namespace that it does not know, also of an empty one
(``:category``), and no scheduler filter of Nova judges it. The keys and values are those of:

* EGI: cASO sends an accounting record if a flavor has all four (IFCA-Advanced-Computing/caso,
  caso/extract/openstack/nova.py); EGI-Federation/cloud-info-provider publishes three of them
  (cloud_info_provider/providers/openstack.py).
* SCS: SovereignCloudStack/standards, Standards/scs-0100-v3-flavor-naming.md for the part of a name
  about GPUs, scs-0103-v1-standard-flavors.md for the property that states a name.
* Skyline: openstack/skyline-console, src/resources/nova/flavor.js.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from osc_lib import exceptions

from nova_gpu import data
from nova_gpu.core import names, vendors
from nova_gpu.core.flavor import condition, gpu_extra_specs, request
from nova_gpu.core.flavor.declaration import ExtraSpec
from nova_gpu.core.flavor.request import FlavorRequest

# vGPUs and MIG profiles of NVIDIA, by the id or the name of their type
_TYPES_OF_NVIDIA = re.compile(r"(nvidia|grid|\d+g)_")
# SCS' generations. It divides Blackwell into two, of which we know one architecture.
_GENERATIONS: Mapping[str, str] = (
    dict(fermi="f", kepler="k", maxwell="m", pascal="p", volta="v", turing="t")
    | dict(ampere="a", ada="l", hopper="g")
    | dict(gcn1="0.1", gcn2="0.2", gcn3="0.3", gcn4="0.4", gcn5="0.5")
    | dict(cdna="1", cdna2="2", cdna3="3", cdna4="4")
    | dict(rdna="1.1", rdna2="2.1", rdna3="3.1", rdna4="4.1")
    | dict(xe_lp="1", xe_hpg="3", xe_hpc="3", xe2="4")
)


@dataclasses.dataclass(frozen=True, slots=True)
class GPUs:
    """The GPUs of a flavor: its whole ones if it has any, else its vGPUs.

    What the flavor leaves open is ``None``. ``model`` of vGPUs is their type.
    """

    count: int
    are_whole: bool
    vendor: str | None
    architecture: str | None
    model: str | None


def of(
    flavor_name: str, programs: Collection[str], extra_specs: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties that describe a flavor for *programs*, keys of :data:`PROGRAMS`.

    :param extra_specs: the flavor's properties without mistakes; a property there is not replaced
    :raises CommandError: if the flavor does not say what a program must know
    """
    gpus = _gpus(request.of(extra_specs))
    described: dict[str, str] = {}
    for program in programs:
        try:
            described |= PROGRAMS[program](flavor_name, gpus, extra_specs)
        except ValueError as e:
            raise exceptions.CommandError(f"--describe-for {program}: {e}") from None
    return described | dict(extra_specs)


def _gpus(flavor: FlavorRequest) -> GPUs:
    requested = flavor.whole or flavor.vgpus
    assert requested  # gpu flavor create refuses a flavor without GPUs
    stated = {demand.word: demand.condition.equal_to for demand in requested.demands}
    architecture, model = stated.get(gpu_extra_specs.GPU_ARCH), stated.get(gpu_extra_specs.MODEL)
    products = [
        (vendors.of(vendor_id).name, names.word(word), name)
        for vendor_id, _, word, name in data.products()
        if (names.word(word) == architecture if architecture else names.word(name) == model)
    ]
    vendor = _only(vendor for vendor, _, _ in products)
    architecture = architecture or _only(word for _, word, _ in products)
    if flavor.whole:
        known = (name for *_, name in products if names.word(name) == model)
        model = model and next(known, _stated(flavor, gpu_extra_specs.MODEL))
        return GPUs(requested.count, True, vendor, architecture, model)
    required = flavor.vgpus.type if flavor.vgpus else None
    vgpu_type = required.equal_to if required else None
    if vgpu_type and _TYPES_OF_NVIDIA.match(vgpu_type):
        vendor = "NVIDIA"
    model = vgpu_type and _stated(flavor, gpu_extra_specs.VGPU_TYPE)
    return GPUs(requested.count, False, vendor, architecture, model)


def _only(values: Iterable[str | None]) -> str | None:
    """Return the value that all *values* are, ``None`` if they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _stated(flavor: FlavorRequest, word: ExtraSpec[condition.Condition]) -> str:
    """Return the name that a flavor requires by an extra spec, in its own spelling."""
    return re.sub(r"^\s*(s==|<or>)", "", flavor.extra_specs[word.name]).strip()


def _for_egi(flavor_name: str, gpus: GPUs, extra_specs: Mapping[str, str]) -> dict[str, str]:
    words = {
        "Accelerator:Type": "GPU",
        "Accelerator:Number": str(gpus.count),
        "Accelerator:Vendor": gpus.vendor,
        # cASO writes the vendor before it.
        "Accelerator:Model": gpus.model and gpus.model.removeprefix(f"{gpus.vendor} "),
    }
    missing = [key for key, value in words.items() if not value and key not in extra_specs]
    if missing:
        raise ValueError(
            f"the flavor does not say its {' and '.join(missing)}, without which EGI's accounting "
            "ignores it; name the GPUs by --arch and --model, vGPUs by --vgpu-type, or add "
            f"--property {missing[0]}=NAME"
        )
    return {key: value for key, value in words.items() if value}


def _for_scs(flavor_name: str, gpus: GPUs, extra_specs: Mapping[str, str]) -> dict[str, str]:
    if not flavor_name.startswith("SCS-"):
        raise ValueError(
            f"the flavor's name {flavor_name} is no name of SCS; begin it with its vCPUs, memory "
            "and disk, such as SCS-8V-64-100: the kinds of vCPU and disk are yours to say"
        )
    if not gpus.vendor:
        raise ValueError("the flavor does not say whose GPUs it has; add --arch or --model")
    kind = "G" if gpus.are_whole else "g"
    part = f"_{kind}{gpus.vendor[0]}{_GENERATIONS.get(gpus.architecture or '', '')}"
    base = flavor_name.removesuffix("_ib")  # which follows the GPU in the standard's order
    stated = re.search(r"_[Gg][^_]*", base)
    if stated and not stated[0].startswith(part):
        raise ValueError(
            f"{stated[0]} in the flavor's name contradicts {part}, which follows from its other "
            "options; correct the name or the options"
        )
    name = flavor_name if stated else base + part + flavor_name[len(base) :]
    return {"scs:name-v3": name}


def _for_skyline(flavor_name: str, gpus: GPUs, extra_specs: Mapping[str, str]) -> dict[str, str]:
    kind = "compute_optimized_type_with_gpu"
    return {
        ":architecture": "heterogeneous_computing",
        ":category": kind if gpus.are_whole else f"visualization_{kind}",
    }


PROGRAMS: Mapping[str, Callable[[str, GPUs, Mapping[str, str]], dict[str, str]]] = {
    "egi": _for_egi,
    "scs": _for_scs,
    "skyline": _for_skyline,
}
