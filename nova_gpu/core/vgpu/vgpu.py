# SPDX-License-Identifier: Apache-2.0
"""The values of divided cards: types of vGPUs, the PCI functions that make vGPUs, slots."""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections.abc import Collection, Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress

# The type's folder in sysfs, with the driver's name in front: nvidia-35, i915-GVTg_V5_4. It is part
# of a resource provider's name, which has no room for longer ids.
_TYPE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")

# The type of virtual functions that need none: it has no driver's name in front. On a host where
# those of one product differ, the division follows: vf-of-2-16384mib.
FUNCTION_TYPE = "vf"
_DIVISION = f"{FUNCTION_TYPE}-of-"

# No card carries nearly as many of a type. Each slot is listed, so nonsense from a driver could
# fill the memory.
MAX_PER_CARD = 4096
# The driver has nodes for eight compute instances of a GPU instance. With two digits for them the
# number of the GPU instance is unambiguous.
_COMPUTE_INSTANCES = 100
_GPU_INSTANCES = 10_000

# A slot's number has nine digits at most. The uuid of a mediated device is larger by far.
_NUMBERS = 10**9
_NUMBER = re.compile("0|[1-9][0-9]{0,8}|(?P<uuid>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})")

LOST = "the MIG instance is no longer on its card"


def is_type_id(text: str) -> bool:
    """Return whether *text* has the form of a vGPU type's id, such as ``nvidia-35``."""
    return _TYPE_ID.fullmatch(text) is not None


def function_type(number: int, memory_mib: int | None = None, mode: str = "") -> str:
    """Return the type of a function that is one of *number* and has this memory, if known.

    :param mode: the partition mode of its card, empty if it follows from the number
    """
    memory = f"{memory_mib}mib" if memory_mib else ""
    return "-".join(filter(None, (f"{_DIVISION}{number}", mode, memory)))


def is_function_type(type_id: str) -> bool:
    """Return whether *type_id* is that of virtual functions which need no vGPU type."""
    return type_id == FUNCTION_TYPE or is_divided_function_type(type_id)


def is_divided_function_type(type_id: str) -> bool:
    """Return whether *type_id* says how the card of such virtual functions is divided."""
    return type_id.startswith(_DIVISION)


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUType:
    """The facts of each vGPU of one type; ``None`` for a fact that the driver does not report.

    ``per_card`` is how many vGPUs of the type an otherwise empty card carries, ``per_guest`` how
    many one guest can have. ``resolution`` is the largest one of a head, in pixels. ``slices`` is
    the share of a MIG card's compute. ``profile`` is the driver's number of the GPU instance
    profile that the vGPUs are made from: types with different profiles do not share capacity.
    ``per_instance`` is how many vGPUs one such GPU instance carries, all of one memory size.
    ``places`` are where on the card a vGPU can begin, in a unit of the driver's, and ``place_size``
    is how much it takes there. They are empty and ``None`` unless the card's vGPUs may be of
    several sizes.
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
    per_instance: int | None = None
    places: tuple[int, ...] = ()
    place_size: int | None = None


class VGPUKind(enum.Enum):
    """The form in which a PCI function provides vGPUs, with the noun for such vGPUs.

    TYPED: the function is a virtual function that gets an NVIDIA vGPU type. PLAIN: the function is
    a virtual function without a type; its vGPU has a type of :func:`is_function_type`. INSTANCE:
    the operator has made them. Only readers and deliveries of vGPUs name a kind: others ask it for
    what follows from it, so that a new kind answers here.
    """

    MEDIATED = "vGPUs that are mediated devices"
    TYPED = "virtual functions with vGPU types"
    PLAIN = "virtual functions"
    INSTANCE = "MIG instances"

    @property
    def is_mediated(self) -> bool:
        """Whether the vGPU is a device with a uuid, of which one function may provide several."""
        return self is VGPUKind.MEDIATED

    @property
    def is_function(self) -> bool:
        """Whether guests get the PCI function itself."""
        return self in (VGPUKind.TYPED, VGPUKind.PLAIN)

    @property
    def is_plain(self) -> bool:
        """Whether the function is a vGPU as it is; its driver does not report who has it."""
        return self is VGPUKind.PLAIN

    @property
    def hides_types(self) -> bool:
        """Whether the driver lists only the types of which one more vGPU has room."""
        return self is VGPUKind.TYPED

    @property
    def may_wedge(self) -> bool:
        """Whether a guest that ends while it starts may leave the function unusable.

        The host does not report that (:mod:`nova_gpu.virt.health.failed_starts` has the source).
        """
        return self is VGPUKind.TYPED


@dataclasses.dataclass(frozen=True, slots=True)
class Parent:
    """A PCI function that provides vGPUs: a card, or one of its virtual functions.

    ``available`` is how many more vGPUs of each type its driver can make, ``made`` how many exist,
    both by the type's id. ``numbers`` are the slot numbers of the card's MIG instances, by the id
    of their type (:func:`slot_number`); empty for any other kind. ``gpu_instance`` is the id of the
    GPU instance that the vGPU of a virtual function is in, and ``place`` is where on the card it
    begins (:attr:`VGPUType.places`); each is ``None`` if there is none or it is unknown.
    """

    kind: VGPUKind
    available: Mapping[str, int]
    made: Mapping[str, int]
    numbers: Mapping[str, Collection[int]] = dataclasses.field(default_factory=dict)
    gpu_instance: int | None = None
    place: int | None = None

    def is_made(self, slot: Slot) -> bool:
        """Return whether the vGPU of *slot* exists; not for mediated devices."""
        if self.kind is VGPUKind.INSTANCE:
            return slot.number in self.numbers.get(slot.type_id, ())
        return slot.type_id in self.made


# What is assumed of a function that the host does not have
UNKNOWN = Parent(VGPUKind.MEDIATED, {}, {})


@dataclasses.dataclass(frozen=True, slots=True)
class DividedCard:
    """A card that is divided into vGPUs or MIG instances, or can be.

    ``types`` are its vGPU types by id, ``parents`` its functions that provide vGPUs by address.
    ``unread``: why the division is unknown; then it is also unknown whether the card is divided at
    all. ``sharing``: the slot numbers of MIG instances that share the memory of their GPU instance
    with others; new guests do not get them.
    """

    types: Mapping[str, VGPUType]
    parents: Mapping[PciAddress, Parent]
    unread: str | None = None
    sharing: frozenset[int] = frozenset()

    @property
    def has_instances(self) -> bool:
        """Whether the operator has divided the card into MIG instances."""
        return any(parent.kind is VGPUKind.INSTANCE for parent in self.parents.values())

    @property
    def is_plain(self) -> bool:
        """Whether the card's vGPUs are its virtual functions as they are."""
        return any(parent.kind.is_plain for parent in self.parents.values())


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The place of one vGPU, made or not: ``0000:3b:00.0/nvidia-35/0``.

    It consists of the PCI function, the id of the vGPU type and a number from 0. For a MIG instance
    the type is its profile, and the number is :func:`slot_number`. A mediated device that another
    program has made is its own slot, with its uuid for the number (:meth:`of_device`).
    """

    parent: PciAddress
    type_id: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Parse ``address/type/number`` or ``address/type/uuid``.

        :raises InvalidValue: if *text* does not have that form
        """
        address, _, rest = text.partition("/")
        type_id, _, number = rest.partition("/")
        if is_type_id(type_id) and (match := _NUMBER.fullmatch(number)):
            value = uuid.UUID(number).int if match["uuid"] else int(number)
            slot = cls(PciAddress.parse(address), type_id, value)
            # Only one text may denote a slot.
            if str(slot) == text:
                return slot
        raise exception.InvalidValue(
            f"{text!r} is not the slot of a vGPU: it must look like 0000:3b:00.0/nvidia-35/0 "
            "(PCI address, type, number)"
        )

    @classmethod
    def of_device(cls, parent: PciAddress, type_id: str, device: str) -> Slot:
        """Return the slot of a mediated device that nova-gpu has not made."""
        return cls(parent, type_id, uuid.UUID(device).int)

    def __str__(self) -> str:
        return f"{self.parent}/{self.type_id}/{self.device or self.number}"

    @property
    def device(self) -> str | None:
        """The uuid of the mediated device that :meth:`of_device` has got, else ``None``."""
        return str(uuid.UUID(int=self.number)) if self.number >= _NUMBERS else None

    @property
    def is_mig(self) -> bool:
        """Whether the slot is that of a MIG instance.

        The id of its type is a MIG profile, which begins with a digit. Any other id begins with the
        name of a driver.
        """
        return self.type_id[0].isdecimal()

    @property
    def place(self) -> Slot:
        """The slot, but with an empty ``type_id`` for a MIG instance or a function without a type.

        Slots with the same place are one device, which one guest at a time may have. The operator
        may make a MIG instance anew with another profile and the same number, and the type of a
        function follows from the host's other functions.
        """
        is_any = self.is_mig or is_function_type(self.type_id)
        return Slot(self.parent, "", self.number) if is_any else self


def device_uuid(instance_uuid: str, slot: Slot) -> str:
    """Return the uuid of the mediated device that an instance has at *slot*.

    It depends on the two arguments only, and differs for each instance, unless the slot is that of
    a device which nova-gpu has not made.
    """
    if (made := slot.device) is not None:
        return made
    try:
        namespace = uuid.UUID(instance_uuid)
    except ValueError:
        raise exception.InvalidValue(f"{instance_uuid!r} is not the uuid of an instance") from None
    return str(uuid.uuid5(namespace, str(slot)))


def slot_number(gpu_instance: int, compute_instance: int) -> int | None:
    """Return the slot number of a MIG instance: 900 for ``9/0``.

    Return ``None`` for ids that are too large. The ids stay the same as long as the MIG instance
    exists; its position in a list of all MIG instances would not.
    """
    if compute_instance in range(_COMPUTE_INSTANCES) and gpu_instance in range(_GPU_INSTANCES):
        return gpu_instance * _COMPUTE_INSTANCES + compute_instance
    return None


def of_slot(number: int) -> tuple[int, int]:
    """Return the ids of GPU instance and compute instance, the reverse of :func:`slot_number`."""
    return divmod(number, _COMPUTE_INSTANCES)
