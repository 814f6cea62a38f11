# SPDX-License-Identifier: Apache-2.0
"""The board with NVSwitches of a KVM host: its cards, and Fabric Manager's partitions of them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core.card_sets import Module
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import nvswitch
from nova_gpu.host.roots import Roots
from nova_gpu_fabric.core import partitions
from nova_gpu_fabric.core.partitions import Partition
from nova_gpu_fabric.host import fabric_manager, modules
from nova_gpu_fabric.host.fabric_manager import FabricManager, FabricState, Refused

# Fabric Manager takes several seconds to bring up the NVLinks of eight cards.
_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """The state of a board with NVSwitches when it was last read.

    ``modules`` has the module number, the place on the board, of each card for which it is known.
    ``fabric`` is Fabric Manager's answer; without an answer it is ``None``, and ``fault`` is the
    reason. ``mode`` is Fabric Manager's FABRIC_MODE, ``None`` if it is unknown.
    """

    cards: frozenset[PciAddress]
    modules: Mapping[PciAddress, Module]
    fabric: FabricState | None
    fault: Refused | None = None
    mode: int | None = None

    def wrong_mode(self, *, in_parts: bool) -> Refused | None:
        """Return why Fabric Manager's mode prevents partitions; ``None`` if it does not.

        Return ``None`` for an unknown mode, too.

        :param in_parts: whether guests are to get vGPUs, each of which occupies a whole card; if
            false, they are to get whole cards
        """
        right, done = fabric_manager.WHOLE_MODE, "vGPUs and no whole cards"
        if in_parts:
            right, done = fabric_manager.VGPU_MODE, "no vGPUs"
        if self.mode is None or (self.mode == fabric_manager.VGPU_MODE) is in_parts:
            return None
        return Refused(
            f"Fabric Manager runs with FABRIC_MODE={self.mode}, in which it joins {done}",
            f"set FABRIC_MODE={right} in fabricmanager.cfg, and restart it and nova-compute",
        )

    def cards_of(self) -> Mapping[int, frozenset[PciAddress]]:
        """Return the cards of each partition by its number, without partitions of unknown cards."""
        return (
            {} if self.fabric is None else partitions.joined(self.fabric.partitions, self.modules)
        )

    def partitions_of(self, card: PciAddress) -> list[Partition]:
        """Return the partitions that contain *card*, the largest first.

        Return none if the card's module number is unknown.
        """
        if self.fabric is None or card not in self.modules:
            return []
        module = self.modules[card]
        table = (partition for partition in self.fabric.partitions if module in partition.modules)
        return sorted(table, key=lambda partition: (-partition.size, partition.id))

    def faults(self) -> list[str]:
        """Return the texts, for operators, of all faults of the board and Fabric Manager."""
        faults = [str(self.fault)] if self.fault else []
        if unknown := sorted(self.cards - self.modules.keys()):
            cards = ", ".join(map(str, unknown))
            faults.append(
                f"the module numbers of the cards {cards} are unknown; NVML reports them for cards "
                "with NVIDIA's driver ([gpu]nvml)"
            )
        if self.fabric is None:
            return faults
        for device in self.fabric.failed or ():
            kind = "NVSwitch" if device.is_switch else "GPU"
            ports = ", ".join(map(str, device.ports))
            faults.append(f"NVLinks of the {kind} {device.address} have failed (ports {ports})")
        if lost := self.fabric.unsupported:
            numbers = ", ".join(str(card.id) for card in lost)
            faults.append(
                f"Fabric Manager cannot offer the partitions {numbers} because of a fault; "
                f"{fabric_manager.SEE_LOG}"
            )
        for part in self.fabric.partitions:
            if part.degraded:
                weak = ", ".join(map(str, sorted(part.degraded)))
                faults.append(f"partition {part.id} is degraded: modules {weak} lack NVLinks")
        return faults


def modules_file() -> pathlib.Path:
    """Return the path of the file in which the cards' module numbers are saved."""
    return pathlib.Path(NOVAS.state_path, "gpu-modules.json")


def manager() -> FabricManager:
    """Return the client of the Fabric Manager at ``[gpu]fabric_manager_address``."""
    return FabricManager(CONF.gpu.fabric_manager_address, _TIMEOUT_S)


def read(
    cards_: Iterable[GPU], roots: Roots, path: pathlib.Path, client: FabricManager
) -> Board | None:
    """Read and return the board with NVSwitches of this host.

    Return ``None`` if none of *cards_* is on a board that a Fabric Manager on this host can set up.

    :param path: the file of :mod:`nova_gpu_fabric.host.modules`
    """
    gpus = [
        gpu
        for gpu in cards_
        if nvswitch.board(gpu, roots) and nvswitch.out_of_reach(gpu, roots) is None
    ]
    if not gpus:
        return None
    cards = frozenset(gpu.address for gpu in gpus)
    known = modules.completed(path, cards, {})
    if known.keys() != cards:
        # Query NVML only if needed: it opens cards, which may be about to be bound for guests.
        known = modules.completed(path, cards, _modules(gpus))
    try:
        fabric = client.read()
    except Refused as error:
        return Board(cards, known, None, error)
    return Board(cards, known, fabric, mode=fabric_manager.mode(roots))


def keep_modules(cards_: Iterable[GPU], roots: Roots, path: pathlib.Path) -> None:
    """Save the module numbers of the board's cards, which must still have NVIDIA's driver.

    :param path: the file of :mod:`nova_gpu_fabric.host.modules`
    """
    gpus = [gpu for gpu in cards_ if nvswitch.board(gpu, roots)]
    if gpus:
        cards = frozenset(gpu.address for gpu in gpus)
        modules.keep(path, cards, modules.completed(path, cards, _modules(gpus)))


def _modules(gpus: Iterable[GPU]) -> modules.Modules:
    """Return the module numbers that NVML reports; it knows only cards with NVIDIA's driver."""
    held = sorted(gpu.address for gpu in gpus if gpu.driver == nvml.DRIVER)
    return nvml.modules(held, CONF.gpu.nvml_timeout) if held and CONF.gpu.nvml else {}
