# SPDX-License-Identifier: Apache-2.0
"""The request of a flavor: whole GPUs, vGPUs, and how its guest sees them.

``gpus``, ``gpu_arch``, ``vgpus``, ``vgpu_type``, ``hypervisor`` (older: ``hypervisor_type``) and
``gpu:...`` are nova-gpu's, declared in :mod:`nova_gpu.core.flavor.gpu_extra_specs`;
``resources:PGPU``, ``resources:VGPU`` and ``trait:`` are Nova's, in the unsuffixed request group or
in suffixed ones. A flavor may use either or both; if it uses both, they must agree.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeAlias

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import (
    condition,
    gpu_extra_specs,
    parsers,
    placement_policy,
    request_group,
)
from nova_gpu.core.flavor.condition import Condition, Quantity, Stated
from nova_gpu.core.flavor.declaration import About
from nova_gpu.core.flavor.gpu_extra_specs import Demand
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.flavor.placement_policy import Arrangement, GuestTopology, Topology
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.vgpu.vgpu import VGPUType

# Extra specs by which Nova gives devices without Placement: passthrough, and Cyborg's.
_OTHERS_DEVICES = frozenset({names.PCI_ALIAS, "accel:device_profile"})

_ISLANDS = {Topology.NUMA: names.TRAIT_NUMA_ISLAND, Topology.NVLINK: names.TRAIT_NVLINK_ISLAND}

_PRODUCT_WORDS = gpu_extra_specs.names_about(About.PRODUCT)
_VGPU_WORDS = gpu_extra_specs.names_about(About.PARTS)

# A word of the flavor, its condition, and the prefix of the traits with which providers state it.
_Conditions: TypeAlias = Iterator[tuple[str, Stated, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class GPURequest:
    """The whole GPUs that a flavor requests: ``count`` in all, the sum over ``groups``.

    ``demands`` and ``hypervisor`` are conditions that all of them must satisfy. ``counted``:
    whether the flavor itself has ``resources:PGPU``, which quota counts.
    """

    count: int
    demands: tuple[Demand, ...]
    hypervisor: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool
    arrangement: Arrangement = placement_policy.ANY

    resource_class: ClassVar[str] = names.RESOURCE_CLASS

    @property
    def model_class(self) -> str | None:
        """The resource class that counts the GPUs by model, ``None`` if several models fit."""
        stated = next(
            (value for word, value in self.demands if word is gpu_extra_specs.MODEL), None
        )
        return names.model_class(stated.equal_to) if stated else None

    @property
    def architecture(self) -> Stated | None:
        return next(
            (value for word, value in self.demands if word is gpu_extra_specs.GPU_ARCH), None
        )

    def conditions(self, group: GroupRequest) -> _Conditions:
        """Yield the conditions that a provider must satisfy to serve *group*.

        Each has the extra spec's name for messages, the condition, and the prefix of the traits
        with which providers state their value.
        """
        yield from _traits_of(self.demands)
        if self.hypervisor:
            yield names.HYPERVISOR, self.hypervisor, names.TRAIT_HYPERVISOR
        if prefix := _ISLANDS.get(self.arrangement.required(group.count), ""):
            yield (
                f"{names.TOPOLOGY} {self.arrangement.topology}, islands of",
                Quantity(condition.Comparison.AT_LEAST, group.count),
                prefix,
            )
        if self.arrangement.insists_on_near:
            near = condition.parse_name(names.NEAR, self.arrangement.near)
            yield names.NEAR, near, names.TRAIT_NEAR
        if self.arrangement.insists_on_peers(group.count):
            over = condition.parse_name(names.PEER_ACCESS, names.OVER_ROOT)
            yield f"{names.PEER_ACCESS} over the", over, names.TRAIT_PEER_ACCESS


@dataclasses.dataclass(frozen=True, slots=True)
class VGPURequest:
    """The vGPUs that a flavor requests: ``count`` in all, the sum over ``groups``.

    ``counted``: whether the flavor itself has ``resources:VGPU``, which quota counts. ``type`` is
    the condition on the name or the id of the vGPU type, ``None`` for any type. ``demands`` are
    conditions on the cards and on each vGPU.
    """

    count: int
    type: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool
    demands: tuple[Demand, ...] = ()

    resource_class: ClassVar[str] = names.VGPU_RESOURCE_CLASS
    # The limit of all vGPUs is the only one for them.
    model_class: ClassVar[None] = None

    def conditions(self, group: GroupRequest) -> _Conditions:
        """Yield the conditions that a provider must satisfy, as :meth:`GPURequest.conditions`."""
        if self.type is not None:
            yield names.VGPU_TYPE, self.type, names.TRAIT_VGPU_TYPE
        yield from _traits_of(self.demands)

    def takes_type(self, facts: VGPUType) -> bool:
        """Return whether vGPUs of the type *facts* satisfy ``type``, by its id or its name."""
        return self.type is None or self.type.matches(facts.id) or self.type.matches(facts.name)


Request: TypeAlias = GPURequest | VGPURequest


@dataclasses.dataclass(frozen=True)
class FlavorRequest:
    """The GPU request of a flavor.

    Each property is parsed on first use, so that an error in one does not affect the others: an
    instance without GPUs must not fail because of its flavor's GPU properties, nor a container
    because of properties for KVM guests only. What cannot be parsed raises InvalidExtraSpec.
    """

    extra_specs: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra_specs", types.MappingProxyType(dict(self.extra_specs)))

    @functools.cached_property
    def whole(self) -> GPURequest | None:
        """The whole GPUs that the flavor requests, or ``None`` if it requests none.

        :raises InvalidExtraSpec: if a value cannot be used, if two contradict each other, or if the
            flavor describes GPUs but requests none
        """
        specs = self.extra_specs
        gpus = specs.get(names.GPUS)
        stated = None if gpus is None else parsers.parse_count(gpus)
        groups = request_group.agreeing(specs, names.GPUS, stated, names.RESOURCE_CLASS)
        counted = sum(group.count for group in groups.values())
        count = stated or counted
        if not count:
            self._refuse_stray_words()
            return None
        if not counted:
            required, forbidden = request_group.traits(specs, "")
            groups[""] = GroupRequest("", count, required, forbidden)
        request = GPURequest(
            count=count,
            demands=gpu_extra_specs.demands(specs, About.WHOLE, About.PRODUCT),
            hypervisor=_agreed_hypervisor(specs),
            groups=tuple(group for group in groups.values() if group.count),
            counted=bool(counted),
            arrangement=placement_policy.parse(specs),
        )
        for group in request.groups:
            if group.model and request.model_class not in (None, group.model):
                raise exception.InvalidExtraSpec(
                    names.MODEL,
                    specs[names.MODEL],
                    f"resources{group.suffix}:{group.model} counts another model",
                    f"resources{group.suffix}:{request.model_class}",
                )
        return request

    @functools.cached_property
    def vgpus(self) -> VGPURequest | None:
        """The vGPUs that the flavor requests with nova-gpu's properties, ``None`` without them.

        A flavor with ``resources:VGPU`` alone is Nova's: any vGPU serves it, of nova-gpu or of the
        types that [devices]enabled_mdev_types names.
        """
        if not self.vgpu_words:
            return None
        specs = self.extra_specs
        text = specs.get(names.VGPUS)
        stated = None if text is None else parsers.parse_count(text, names.VGPUS)
        vgpu_type = gpu_extra_specs.VGPU_TYPE.of(specs)
        resource_class = names.VGPU_RESOURCE_CLASS
        groups = request_group.agreeing(specs, names.VGPUS, stated, resource_class)
        counted = sum(group.count for group in groups.values())
        count = stated or counted
        if not count:
            word = self.vgpu_words[0]
            raise exception.InvalidExtraSpec(
                word,
                specs[word],
                "the flavor asks for no vGPU",
                f"{word} together with {names.VGPUS} or resources:{resource_class}",
            )
        # If the flavor requests whole GPUs as well, its traits and product words describe those.
        whole = self.asks_for_gpus
        if not counted:
            traits = (frozenset(), frozenset()) if whole else request_group.traits(specs, "")
            groups[""] = GroupRequest("", count, *traits)
        elif "" in groups and whole and self._whole_are_unsuffixed:
            groups[""] = GroupRequest("", groups[""].count)
        return VGPURequest(
            count=count,
            type=vgpu_type,
            groups=tuple(group for group in groups.values() if group.count),
            counted=bool(counted),
            demands=gpu_extra_specs.demands(
                specs, *(() if whole else (About.PRODUCT,)), About.PARTS
            ),
        )

    @functools.cached_property
    def requests(self) -> tuple[Request, ...]:
        """The requests for whole GPUs and for vGPUs; empty if the flavor has neither."""
        return tuple(request for request in (self.whole, self.vgpus) if request is not None)

    def counts(self, *, by_model: bool) -> Counter[str]:
        """Return how many GPUs and vGPUs Placement counts for one instance, by resource class.

        :param by_model: whether GPUs are counted by model too, even if the flavor does not say so
        """
        counts: Counter[str] = Counter()
        for request in self.requests:
            for group in request.groups:
                counts[request.resource_class] += group.count
                if model := group.model or (by_model and request.model_class):
                    counts[model] += group.count
        return counts

    def uncounted(self, *, by_model: bool) -> Counter[str]:
        """Return those of :meth:`counts` that Nova's API does not count for quota."""
        by_nova: Counter[str] = Counter()
        for request in self.requests:
            for group in request.groups:
                by_nova[request.resource_class] += group.count * request.counted
                by_nova[group.model] += group.count
        return self.counts(by_model=by_model) - by_nova

    @functools.cached_property
    def hypervisor(self) -> Condition | None:
        """The condition on the host's hypervisor, ``None`` without one.

        A flavor without GPUs may state one too.
        """
        if self.whole:
            return self.whole.hypervisor
        return gpu_extra_specs.HYPERVISOR.of(self.extra_specs)

    def check(self) -> None:
        """Refuse a flavor whose requests or hypervisor the scheduler cannot parse."""
        request_group.refuse_line_feeds(self.extra_specs)
        if self.requests:
            request_group.refuse_traits_alone(self.extra_specs)
        _ = self.hypervisor, self.vgpu_params

    @functools.cached_property
    def vgpu_params(self) -> str:
        """The parameters of the vGPUs, as NVIDIA's driver takes them; empty without any."""
        return gpu_extra_specs.VGPU_PARAMS.of(self.extra_specs) or ""

    @functools.cached_property
    def option_rom(self) -> bool:
        """Whether a KVM guest sees the option ROMs of its GPUs; true unless the flavor says no."""
        return parsers.parse_switch(names.OPTION_ROM, self.extra_specs, otherwise=True)

    @functools.cached_property
    def guest_topology(self) -> GuestTopology:
        """The value of ``gpu:guest_topology``, ``AUTO`` if the flavor does not set it."""
        return gpu_extra_specs.GUEST_TOPOLOGY.of(self.extra_specs) or GuestTopology.AUTO

    def check_guest_options(self) -> None:
        """Refuse invalid values of ``gpu:option_rom`` and ``gpu:guest_topology``."""
        _ = self.option_rom, self.guest_topology

    @functools.cached_property
    def on_stop(self) -> OnStop | None:
        """The value of ``gpu:on_stop``, ``None`` if the flavor does not set it."""
        return gpu_extra_specs.ON_STOP.of(self.extra_specs)

    def gives_back(self, image: str | None, host: OnStop) -> bool:
        """Return whether a stopped instance gives its GPUs back, by its flavor or else by *host*.

        Tenants write images, so the property of an *image* can keep the GPUs where *host* would
        release them, but cannot release GPUs. An invalid value releases none.

        :param image: the value of the image's property ``gpu:on_stop``, ``None`` without it
        """
        try:
            by_image = OnStop.RELEASE if image is None else parsers.parse_on_stop(image)
            value = self.on_stop or (host if by_image is OnStop.RELEASE else OnStop.KEEP)
        except exception.InvalidExtraSpec:
            return False
        return value is OnStop.RELEASE

    @property
    def is_isolated(self) -> bool:
        """Whether each request group must be served by another provider, by ``group_policy``."""
        return self.extra_specs.get("group_policy") == "isolate"

    @functools.cached_property
    def asks_for_gpus(self) -> bool:
        """Whether the flavor has ``gpus`` or ``resources:PGPU``, even with invalid values."""
        return names.GPUS in self.extra_specs or request_group.ask_for_gpus(self.extra_specs)

    @functools.cached_property
    def asks_for_vgpus(self) -> bool:
        """Whether the flavor has ``vgpus`` or ``resources:VGPU``, even with invalid values."""
        return names.VGPUS in self.extra_specs or request_group.ask_for_gpus(
            self.extra_specs, names.VGPU_RESOURCE_CLASS
        )

    @functools.cached_property
    def is_cpu_only(self) -> bool:
        """Whether the flavor requests no device of any kind, neither GPUs nor other devices."""
        return not (
            self.asks_for_gpus
            or names.VGPUS in self.extra_specs
            or request_group.devices(self.extra_specs)
            or self.extra_specs.keys() & _OTHERS_DEVICES
        )

    @functools.cached_property
    def vgpu_words(self) -> tuple[str, ...]:
        """The names of the flavor's properties that describe vGPUs in nova-gpu's words.

        If there are none, the vGPUs of ``resources:VGPU`` may be Nova's own.
        """
        texts = _VGPU_WORDS + (_PRODUCT_WORDS if self._products_are_vgpus else ())
        return tuple(word for word in texts if word in self.extra_specs)

    @property
    def _products_are_vgpus(self) -> bool:
        """Whether :data:`_PRODUCT_WORDS` describe the vGPUs: there are no whole GPUs."""
        return self.asks_for_vgpus and not self.asks_for_gpus

    @property
    def _whole_are_unsuffixed(self) -> bool:
        """Whether the unsuffixed request group requests the whole GPUs."""
        unsuffixed = f"resources:{names.RESOURCE_CLASS}" in self.extra_specs
        return unsuffixed or not request_group.ask_for_gpus(self.extra_specs)

    def _refuse_stray_words(self) -> None:
        """Refuse a flavor without whole GPUs that has a property about them."""
        of_vgpus = _PRODUCT_WORDS if self._products_are_vgpus else ()
        for key in (*_PRODUCT_WORDS, *gpu_extra_specs.names_about(About.WHOLE)):
            if (text := self.extra_specs.get(key)) is None or key in of_vgpus:
                continue
            count = f"{names.GPUS} or resources:{names.RESOURCE_CLASS}"
            if key in _PRODUCT_WORDS:
                count += f", {names.VGPUS} or resources:{names.VGPU_RESOURCE_CLASS}"
            raise exception.InvalidExtraSpec(
                key, text, "the flavor asks for no GPU", f"{key} together with {count}"
            )


def of(extra_specs: Mapping[str, str]) -> FlavorRequest:
    """Return the request of a flavor; equal extra specs share one object."""
    return _of(tuple(extra_specs.items()))


@functools.lru_cache(maxsize=256)
def _of(items: tuple[tuple[str, str], ...]) -> FlavorRequest:
    return FlavorRequest(dict(items))


def _traits_of(demands: tuple[Demand, ...]) -> _Conditions:
    return ((word.name, stated, word.trait) for word, stated in demands)


def _agreed_hypervisor(extra_specs: Mapping[str, str]) -> Condition | None:
    new = gpu_extra_specs.HYPERVISOR.of(extra_specs)
    old = gpu_extra_specs.HYPERVISOR_TYPE.of(extra_specs)
    if new and old and new != old:
        raise exception.InvalidExtraSpec(
            names.HYPERVISOR_TYPE,
            extra_specs[names.HYPERVISOR_TYPE],
            f"{names.HYPERVISOR} says {extra_specs[names.HYPERVISOR]!r}",
            f"the same in both, or {names.HYPERVISOR} alone",
        )
    return new or old
