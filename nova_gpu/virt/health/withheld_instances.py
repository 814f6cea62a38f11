# SPDX-License-Identifier: Apache-2.0
"""MIG instances that nobody new is given, while the others of their cards are.

One file in the state path::

    {"boot_id": "...", "instances": [["0000:19:00.0", "9/0"], ["0000:3b:00.0", "1/*"]]}

It is over when the host has booted, and of an instance that is there no more.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Set

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu_room
from nova_gpu.core.vgpu.mig import of_slot
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.state import files

# A card, and ``9/0`` or, for all compute instances of a GPU instance, ``9/*``
Named = tuple[PciAddress, str]


class WithheldInstances:
    """:param path: need not exist yet"""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def of_boot(self, boot_id: str) -> frozenset[Named]:
        """Those of the host's boot; what cannot be understood is none"""
        try:
            content = files.read_json(self._path)
            if content["boot_id"] != boot_id:
                return frozenset()
            told = [(PciAddress.parse(each[0]), str(each[1])) for each in content["instances"]]
        except (OSError, ValueError, LookupError, TypeError, exception.InvalidPciAddress):
            return frozenset()
        return frozenset(told)

    def save(self, boot_id: str, instances: Set[Named]) -> None:
        """:raises OSError: where it cannot be written"""
        if instances == self.of_boot(boot_id):
            return
        told = sorted((str(address), name) for address, name in instances)
        files.write_json(self._path, {"boot_id": boot_id, "instances": told})

    def slots(self, cards: Iterable[SharedCard], boot_id: str) -> frozenset[Slot]:
        """Those of *cards* that are withheld; those that the cards have no more are forgotten.

        :raises OSError: where that cannot be written
        """
        withheld = self.of_boot(boot_id)
        if not withheld:
            return frozenset()
        found, over = set(), set()
        for card in cards:
            names = {slot: _names(slot) for slot in vgpu_room.all_instances(card.card)}
            found |= {slot for slot, its in names.items() if its & withheld}
            own = {each for each in withheld if each[0] == card.gpu.address}
            over |= own.difference(*names.values()) if card.card.has_instances else set()
        self.save(boot_id, withheld - over)
        return frozenset(found)


def _names(slot: Slot) -> frozenset[Named]:
    gpu_instance, compute_instance = of_slot(slot.number)
    names = (f"{gpu_instance}/{compute_instance}", f"{gpu_instance}/*")
    return frozenset((slot.parent, each) for each in names)
