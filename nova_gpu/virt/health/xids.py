# SPDX-License-Identifier: Apache-2.0
"""Cards and MIG instances with an Xid in the kernel's log that they do not recover from.

An Xid is the number of an error that NVIDIA's driver reports of a card.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Set

from oslo_log import log as logging

import nova_gpu.privsep.readings
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary, exception, health_verdict
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import Slot, of_slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import kernel_log, nvml
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu.virt.health.monitor import Quarantine

LOG = logging.getLogger(__name__)

_CONTAINED = Unavailable(
    f"its driver reported Xid {health_verdict.CONTAINED_XID} of it",
    "when no instance has it any more, destroy it and create it again a period later, or boot the "
    "host",
    Source.XID,
)

# A card's address, and a MIG instance of it as ``9/0`` (GPU instance 9, compute instance 0), or
# ``9/*`` for all compute instances of GPU instance 9
XidDevice = tuple[PciAddress, str]


class Xids:
    """The reader of Xids in the kernel's log.

    It reads each line once and saves its position in the log, which a later service continues from.
    So a card that was released from quarantine does not return there for the same line.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._path = pathlib.Path(NOVAS.state_path, "gpu-kernel-log")
        self._faulty = FaultyInstances(pathlib.Path(NOVAS.state_path, "gpu-withheld-instances"))
        self._read_at = 0.0
        self._unread: str | None = None

    def look(self, gpus: Collection[GPU], quarantine: Quarantine) -> None:
        """Read the log once in ``[gpu]health_interval``; put cards with a fatal Xid in quarantine.

        A contained error of a MIG instance (``CONTAINED_XID``) withholds that MIG instance only. If
        the log cannot be read, log a warning.

        :param quarantine: put a card into quarantine; if it raises OSError, the next call reads the
            same lines again
        """
        is_nvidia = any(gpu.driver == nvml.DRIVER for gpu in gpus)
        if not CONF.gpu.fatal_xids or not is_nvidia or time.monotonic() < self._read_at:
            return
        self._read_at = time.monotonic() + CONF.gpu.health_interval
        try:
            with boundary.crossed():
                self._read(gpus, quarantine)
                self._unread = None
        except boundary.Failure as error:
            if str(error) != self._unread:
                LOG.warning("Cannot read the Xids of this host's NVIDIA GPUs: %s", error)
            self._unread = str(error)

    def unavailable(self, cards: Iterable[SharedCard]) -> dict[Device, Reasons]:
        """Return the slots of MIG instances of *cards* that new instances do not get, with reasons.

        A MIG instance that no longer exists is forgotten: one that is created with the same number
        is another one. Those of a card that has none now are forgotten by :meth:`forget`. If the
        file of the faulty ones cannot be read, return all MIG instances.
        """
        try:
            slots = self._faulty.slots(cards, self._roots.boot_id)
        except (OSError, ValueError) as error:
            # Any MIG instance may be faulty, so none is offered.
            slots = frozenset(s for card in cards for s in vgpu_capacity.all_instances(card.card))
            if slots:
                LOG.warning(
                    "Cannot read which MIG instances are withheld, so new instances get none of "
                    "this host: %s",
                    error,
                )
        return {slot: (_CONTAINED,) for slot in slots}

    def forget(self, gpus: Iterable[GPU]) -> None:
        """Forget the faulty MIG instances of those *gpus* in MIG mode that have no MIG instance.

        Such a card is not among the shared ones, or it is there with the MIG instances that it had.
        """
        empty = {gpu.address for gpu in gpus if gpu.mig == ()}
        with contextlib.suppress(OSError, ValueError):  # it is tried in the next period
            empty = {card for card in empty if not gpu_instances.of_card(card, self._roots)}
            self._faulty.forget(empty, self._roots.boot_id)

    def _read(self, gpus: Collection[GPU], quarantine: Quarantine) -> None:
        boot_id = self._roots.boot_id()
        position = kernel_log.load(self._path)
        known = position.sequence if position and position.boot_id == boot_id else 0
        last, lines = nova_gpu.privsep.readings.xids(known)
        cards = {gpu.address: gpu for gpu in gpus}
        faulty: set[XidDevice] = set()
        failures = []
        for xid in kernel_log.parse(lines):
            card = cards.get(xid.address)
            if card is None:
                continue
            named = _named(xid)
            fault = health_verdict.of_xid(xid.code, xid.text, named)
            if named and xid.code == health_verdict.CONTAINED_XID:
                LOG.error(
                    "New instances do not get MIG instance %s of GPU %s: its driver reported Xid "
                    "%d (%s). When no instance has it any more, destroy it and create it again a "
                    "period later (nvidia-smi mig -dci, -dgi, -cgi), or boot the host.",
                    named,
                    card.address,
                    xid.code,
                    xid.text,
                )
                faulty.add((card.address, named))
            elif xid.code in CONF.gpu.fatal_xids:
                stays = xid.code == health_verdict.FALLEN_OFF_THE_BUS
                try:
                    quarantine(card, fault, None if stays else boot_id)
                except OSError as error:  # the other lines are about other cards
                    failures.append(error)
            else:
                LOG.info("GPU %s: %s", card.address, fault.reason)
        if faulty:
            self._faulty.add(boot_id, faulty)
        if failures:
            raise failures[0]
        if last != known:
            kernel_log.save(self._path, kernel_log.Position(boot_id, last))


class FaultyInstances:
    """The MIG instances with a contained error, which new instances do not get.

    They still get the card's other MIG instances. The faulty ones are in one file in the state
    path::

        {"boot_id": "...", "instances": [["0000:19:00.0", "9/0"], ["0000:3b:00.0", "1/*"]]}

    An entry ends when the host boots, or when its MIG instance no longer exists.

    What reads or changes the file raises OSError if it cannot, and ValueError for another format.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        # Faulty MIG instances of the host's present boot that are not in the file yet
        self._unsaved: frozenset[XidDevice] = frozenset()

    def of_boot(self, boot_id: str) -> frozenset[XidDevice]:
        """Return the MIG instances that became faulty since the boot of the host with *boot_id*."""
        try:
            content = files.read_json(self._path)
            if content["boot_id"] != boot_id:
                return self._unsaved
            instances = [(PciAddress.parse(item[0]), str(item[1])) for item in content["instances"]]
        except FileNotFoundError:
            return self._unsaved
        except (LookupError, TypeError, exception.InvalidPciAddress) as error:
            raise ValueError(f"{self._path} cannot be understood: {error!r}; remove it") from error
        return self._unsaved.union(instances)

    def add(self, boot_id: str, instances: Set[XidDevice]) -> None:
        """Withhold the MIG *instances* from now on, even if the file cannot be written."""
        self._unsaved |= instances
        self.save(boot_id, self.of_boot(boot_id))

    def save(self, boot_id: str, instances: Set[XidDevice]) -> None:
        """Replace the MIG instances in the file by *instances*."""
        entries = sorted((str(address), name) for address, name in instances)
        files.write_json(self._path, {"boot_id": boot_id, "instances": entries})
        self._unsaved = frozenset()

    def forget(self, cards: Set[PciAddress], read_boot_id: Callable[[], str]) -> None:
        """Forget all faulty MIG instances of *cards*."""
        if not cards or not (self._path.exists() or self._unsaved):
            return
        boot_id = read_boot_id()
        faulty = self.of_boot(boot_id)
        instances = frozenset(item for item in faulty if item[0] not in cards)
        if instances != faulty:
            self.save(boot_id, instances)

    def slots(
        self, cards: Iterable[SharedCard], read_boot_id: Callable[[], str]
    ) -> frozenset[Slot]:
        """Return the slots of the faulty MIG instances of *cards*; forget those that are gone.

        :param read_boot_id: return the host's boot id; not called if none is faulty
        """
        if not self._path.exists() and not self._unsaved:
            return frozenset()
        boot_id = read_boot_id()
        faulty = self.of_boot(boot_id)
        if not faulty:
            return frozenset()
        slots, over = set(), set()
        for card in cards:
            names = {slot: _names(slot) for slot in vgpu_capacity.all_instances(card.card)}
            slots |= {slot for slot, its in names.items() if its & faulty}
            own = {instance for instance in faulty if instance[0] == card.gpu.address}
            over |= own.difference(*names.values()) if card.card.has_instances else set()
        if over or self._unsaved:
            with contextlib.suppress(OSError):  # it is tried in the next period
                self.save(boot_id, faulty - over)
        return frozenset(slots)


def _names(slot: Slot) -> frozenset[XidDevice]:
    gpu_instance, compute_instance = of_slot(slot.number)
    names = (f"{gpu_instance}/{compute_instance}", f"{gpu_instance}/*")
    return frozenset((slot.parent, name) for name in names)


def _named(xid: kernel_log.Xid) -> str | None:
    """Return the MIG instance with the Xid, ``9/0`` or ``9/*``; ``None`` if the card has it."""
    if xid.gpu_instance is None:
        return None
    return f"{xid.gpu_instance}/{'*' if xid.compute_instance is None else xid.compute_instance}"
