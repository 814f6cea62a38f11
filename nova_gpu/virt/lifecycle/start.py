# SPDX-License-Identifier: Apache-2.0
"""A start of a guest as a value: its kind, and what the instance has for it.

Which kind takes which of the steps that differ is the table :data:`STEPS`, which the operator's
reference shows (doc/source/reference/starts.csv). All kinds reserve, judge and prepare the devices.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import Any

from nova import objects
from nova.compute import task_states

from nova_gpu.core.device import Device
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery.delivery import Grant
from nova_gpu.virt.inventory.base_inventory import Holding
from nova_gpu.virt.inventory.exchange import Holdings
from nova_gpu.virt.usage import records


class Kind(enum.Enum):
    """The kinds of starts, by what Nova does with the instance."""

    SPAWN = "create, unshelve"
    EVACUATION = "evacuate"
    REBUILD = "rebuild"
    MOVE = "migrate, resize"
    REVERT = "revert a resize"
    REVERT_STOPPED = "revert a resize of a stopped instance"
    REBOOT = "start, hard reboot, host boot"
    SOFT_REBOOT = "soft reboot"
    RESCUE = "rescue"
    UNRESCUE = "unrescue"

    @classmethod
    def of_spawn(cls, instance: objects.Instance, host: str) -> Kind:
        """Return the kind of start for which Nova calls the driver's ``spawn`` on *host*."""
        if instance.task_state != task_states.REBUILD_SPAWNING:
            return cls.SPAWN
        # Nova makes the destination of an evacuation the instance's host afterwards.
        return cls.REBUILD if instance.host == host else cls.EVACUATION


class Step(enum.Enum):
    """The steps that only some kinds of starts take."""

    GIVE_UP = "give up"  # release the wrong GPUs that a failed move left
    COUNT = "count"  # have the GPUs counted by Placement and quota, or claim some
    NEW = "judge as new"  # compare how close the GPUs are, and whether they are clean
    RECHECK = "quota again"  # other requests were judged at the same time
    STRAND = "keep room"  # refuse an instance without GPUs on a host whose free GPUs need the room
    ABORT = "abort"  # a refusal that no other host could spare ends the build
    BILL = "release"  # report a release if the start fails


_SPAWN = {Step.NEW, Step.STRAND, Step.ABORT}
STEPS: Mapping[Kind, Collection[Step]] = {
    Kind.SPAWN: {*_SPAWN, Step.RECHECK, Step.BILL},
    Kind.EVACUATION: {*_SPAWN, Step.BILL},
    Kind.REBUILD: _SPAWN,  # its GPUs are counted before its guest is stopped
    Kind.MOVE: {Step.NEW},
    Kind.REVERT: {Step.COUNT},
    Kind.REVERT_STOPPED: (),
    Kind.REBOOT: {Step.GIVE_UP, Step.COUNT},
    Kind.SOFT_REBOOT: {Step.COUNT},
    Kind.RESCUE: {Step.COUNT},
    Kind.UNRESCUE: {Step.COUNT},
}


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of an instance's guest on this host.

    ``claimed``: whether it claimed its devices for this start, after it released its own at a stop.
    ``held``: its devices of this host, by inventory: whole cards and parts.
    ``had``: the devices that its guest had before on this host.
    ``overruled``: what speaks against its devices and does not refuse the start.
    """

    kind: Kind
    instance: objects.Instance
    claimed: bool = False
    held: Holdings = dataclasses.field(default_factory=dict)
    had: frozenset[Device] = frozenset()
    overruled: str | None = None

    def takes(self, step: Step) -> bool:
        return step in STEPS[self.kind]

    @functools.cached_property
    def flavor(self) -> FlavorRequest:
        """What the instance's flavor requests, for this start.

        A stopped instance without GPUs is defined without them: it gets some at its next start.
        """
        flavor = records.request_of(self.instance)
        is_without = self.kind is Kind.REVERT_STOPPED and not self.devices
        return request.of({}) if is_without else flavor

    @property
    def is_new(self) -> bool:
        return self.claimed or self.takes(Step.NEW)

    @property
    def chooses(self) -> bool:
        """Whether the instance may get other devices, and is refused those that do not suit it.

        A rebuild recovers an instance with the devices that the database counts for it.
        """
        return self.is_new and self.kind is not Kind.REBUILD

    @property
    def defines(self) -> bool:
        """Whether Nova defines the guest's domain anew for this start."""
        return self.takes(Step.NEW) or self.kind is Kind.REBOOT

    @functools.cached_property
    def holdings(self) -> tuple[Holding[Any, Any], ...]:
        return tuple(itertools.chain.from_iterable(self.held.values()))

    @functools.cached_property
    def devices(self) -> frozenset[Device]:
        return frozenset(holding.device for holding in self.holdings)

    @property
    def new(self) -> frozenset[Device]:
        return self.devices - self.had

    @functools.cached_property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(holding.grant for holding in self.holdings)

    @property
    def cards(self) -> list[GPU]:
        return [grant for grant in self.grants if isinstance(grant, GPU)]

    @property
    def slots(self) -> list[Slot]:
        return [grant for grant in self.grants if isinstance(grant, Slot)]
