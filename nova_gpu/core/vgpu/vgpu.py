# SPDX-License-Identifier: Apache-2.0
"""The values of cards that are divided: types of vGPUs, the functions they are made at, slots."""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections.abc import Collection, Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress

# The type's folder in sysfs, the driver's name in front: nvidia-35, i915-GVTg_V5_4. It is part of
# a resource provider's name, which has no room for more.
_TYPE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")

# What a virtual function that needs no type is called: no driver's name is in front of it.
FUNCTION_TYPE = "vf"

# No card carries nearly as many of a type. Each is listed, so that a driver's nonsense could fill
# the memory.
MAX_PER_CARD = 4096
# The driver has a node for each of eight compute instances of a GPU instance. Two digits are read
# as what they are, and leave nobody in doubt where the number of the GPU instance ends.
_COMPUTE_INSTANCES = 100
_GPU_INSTANCES = 10_000

LOST = "the MIG instance is no longer on its card"


def is_type_id(text: str) -> bool:
    """Return whether *text* can be the id of a vGPU type, ``nvidia-35``."""
    return _TYPE_ID.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUType:
    """The facts of each vGPU of one type; ``None`` is what the driver does not report.

    ``per_card`` is how many of it an otherwise empty card carries, ``resolution`` the largest of
    one head in pixels, ``slices`` the part of a MIG card's compute that is behind it, ``profile``
    the driver's number for the GPU instances that it is made of: types of different ones take
    nothing from one another. ``per_guest`` is how many of it one guest can have.
    """

    id: str
    name: str | None = None
    memory_mib: int | None = None
    heads: int | None = None
    resolution: tuple[int, int] | None = None
    per_card: int | None = None
    slices: int | None = None
    profile: int | None = None
    per_guest: int | None = None


class Kind(enum.Enum):
    """The form in which a function provides vGPUs.

    MEDIATED, as mediated devices; TYPED, as a virtual function with an NVIDIA vGPU type; PLAIN, as
    a virtual function without a type, of FUNCTION_TYPE; INSTANCE, as MIG instances that the
    operator has made.
    """

    MEDIATED = enum.auto()
    TYPED = enum.auto()
    PLAIN = enum.auto()
    INSTANCE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Parent:
    """A PCI function that vGPUs are made at: a card, or one of its virtual functions.

    ``available`` is how many more of each type its driver says it can make, ``made`` how many
    there are, both by the type's id. At a plain one nothing is made. ``numbers`` are those of the
    slots of MIG instances, by type: only the operator changes which there are.
    """

    kind: Kind
    available: Mapping[str, int]
    made: Mapping[str, int]
    numbers: Mapping[str, Collection[int]] = dataclasses.field(default_factory=dict)

    def is_made(self, slot: Slot) -> bool:
        """Return whether a vGPU is at *slot* of a function without mediated devices."""
        if self.kind is Kind.INSTANCE:
            return slot.number in self.numbers.get(slot.type_id, ())
        return slot.type_id in self.made


@dataclasses.dataclass(frozen=True, slots=True)
class DividedCard:
    """A card that can be divided, or is.

    ``unread``: why nothing is known of it, and then it is not known either whether it is divided.
    ``sharing``: the numbers of its MIG instances that share the memory of their GPU instance and
    that new guests are not given.
    """

    types: Mapping[str, VGPUType]
    parents: Mapping[PciAddress, Parent]
    unread: str | None = None
    sharing: frozenset[int] = frozenset()

    @property
    def has_instances(self) -> bool:
        """Whether the operator has divided it, into MIG instances."""
        return any(parent.kind is Kind.INSTANCE for parent in self.parents.values())


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The place of one vGPU of a type, made or not: ``0000:3b:00.0/nvidia-35/0``, counted from 0.

    Of a MIG instance the number is :func:`slot_number`.
    """

    parent: PciAddress
    type_id: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Parse ``address/type/number``.

        :raises InvalidValue: where *text* is not of that form
        """
        address, _, rest = text.partition("/")
        type_id, _, number = rest.partition("/")
        if is_type_id(type_id) and re.fullmatch("0|[1-9][0-9]{0,8}", number):
            slot = cls(PciAddress.parse(address), type_id, int(number))
            # Two texts must not be one slot.
            if str(slot) == text:
                return slot
        raise exception.InvalidValue(
            f"{text!r} is not the slot of a vGPU: it must look like 0000:3b:00.0/nvidia-35/0 "
            "(PCI address, type, number)"
        )

    def __str__(self) -> str:
        return f"{self.parent}/{self.type_id}/{self.number}"

    @property
    def is_mig(self) -> bool:
        """Whether the slot is a MIG instance's.

        A profile begins with how many slices it has, the ids of all other types with a driver's
        name.
        """
        return self.type_id[0].isdecimal()

    @property
    def place(self) -> Slot:
        """The place that only one guest may have.

        For MIG instances it is the number alone, which identifies the instance and its device
        nodes. The profile may change.
        """
        return Slot(self.parent, "", self.number) if self.is_mig else self


def device_uuid(instance_uuid: str, slot: Slot) -> str:
    """Return the uuid of the mediated device that an instance has at *slot*.

    The same whenever it is made, and no other instance's.

    :raises InvalidValue: where *instance_uuid* is none
    """
    try:
        namespace = uuid.UUID(instance_uuid)
    except ValueError:
        raise exception.InvalidValue(f"{instance_uuid!r} is not the uuid of an instance") from None
    return str(uuid.uuid5(namespace, str(slot)))


def slot_number(gpu_instance: int, compute_instance: int) -> int | None:
    """Return the number of the slot of a MIG instance: 900 of ``9/0``.

    ``None`` where it can have none.

    It is made of the ids that the driver's nodes are found by, and that an instance keeps as long
    as it is there. A place in the list of all would be another's as soon as the layout changes.
    """
    if compute_instance in range(_COMPUTE_INSTANCES) and gpu_instance in range(_GPU_INSTANCES):
        return gpu_instance * _COMPUTE_INSTANCES + compute_instance
    return None


def of_slot(number: int) -> tuple[int, int]:
    """Return the GPU instance and the compute instance: the reverse of :func:`slot_number`."""
    return divmod(number, _COMPUTE_INSTANCES)
