# SPDX-License-Identifier: Apache-2.0
"""What an instance is asked for with, and what holds in its cloud: tables.

A new flavor, image or condition is a line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from nova_gpu.core.flavor import gpu_extra_specs
from tests.functional import pinned
from tests.matrix import clouds

ALL_KINDS = tuple(clouds.KINDS)
ON_KVM = ("kvm", "mediated", "functions")

Cloud = Any


@dataclasses.dataclass(frozen=True)
class Flavor:
    """``words``: its properties for *count* GPUs in that cloud."""

    words: Callable[[Cloud, int], Mapping[str, str]]
    kinds: tuple[str, ...] = ALL_KINDS


# A move to a host keeps the number; "plain" has no GPUs, and shows what Nova itself does.
PLAIN = "plain"
FLAVORS: Mapping[str, Flavor] = {
    PLAIN: Flavor(lambda cloud, count: {}),
    "gpus": Flavor(lambda cloud, count: cloud.words(count)),
    "counted": Flavor(lambda cloud, count: cloud.counted(count)),
    "release": Flavor(lambda cloud, count: cloud.words(count) | {"gpu:on_stop": "release"}),
    "counted-release": Flavor(
        lambda cloud, count: cloud.counted(count) | {"gpu:on_stop": "release"}
    ),
    **dict.fromkeys(
        ("preemptible",) if "gpu:preemptible" in gpu_extra_specs.NAMES else (),  # of an extension
        Flavor(lambda cloud, count: cloud.words(count) | {"gpu:preemptible": "0s"}),
    ),
    "pinned": Flavor(lambda cloud, count: cloud.words(count) | pinned.WORDS, ON_KVM),
}


@dataclasses.dataclass(frozen=True)
class Image:
    properties: Mapping[str, str]
    kinds: tuple[str, ...] = ALL_KINDS


IMAGES: Mapping[str, Image] = {
    "any": Image({}),
    "q35": Image({"hw_machine_type": "q35"}, ON_KVM),
    "uefi": Image({"hw_machine_type": "q35", "hw_firmware_type": "uefi"}, ON_KVM),
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """What holds from the boot on. ``images``: those that it goes with."""

    begin: Callable[[Cloud], None]
    kinds: tuple[str, ...] = ALL_KINDS
    images: tuple[str, ...] = tuple(IMAGES)


def _at_its_limit(cloud: Cloud) -> None:
    """The project may have one GPU, which its first instance gets."""
    cloud.limits.projlimits[cloud.project][f"class:{cloud.CLASS}"] = 1


def _resize_on_the_same_host(cloud: Cloud) -> None:
    """A resize has no other host to go to."""
    cloud.flags(allow_resize_to_same_host=True)
    service = cloud.computes["host2"].service_ref.uuid
    cloud.admin_api.put_service(service, {"status": "disabled"})


def _default_machine_is_pc(cloud: Cloud) -> None:
    cloud.flags(hw_machine_type=["x86_64=pc"], group="libvirt")
    for name in cloud.hosts:
        cloud.restart_host(name)


def _soft_delete(cloud: Cloud) -> None:
    cloud.flags(reclaim_instance_interval=3600)


CONDITIONS: Mapping[str, Condition] = {
    "limit": Condition(_at_its_limit),
    "same-host": Condition(_resize_on_the_same_host),
    "pc": Condition(_default_machine_is_pc, ON_KVM, ("q35", "uefi")),
    "soft-delete": Condition(_soft_delete),
}
