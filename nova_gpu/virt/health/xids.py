# SPDX-License-Identifier: Apache-2.0
"""Cards of which NVIDIA's driver has reported what they do not recover from by themselves."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Collection, Iterable

from oslo_log import log as logging

import nova_gpu.privsep.kernel_log
from nova_gpu.conf import CONF
from nova_gpu.core import health
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.nvidia import kernel_log, nvml
from nova_gpu.host.roots import Roots
from nova_gpu.virt.health import withheld_instances

LOG = logging.getLogger(__name__)

# Puts a card into quarantine for a reason, with a remedy, until the host has booted or, where that
# does not help, until it is released.
PutAway = Callable[[GPU, health.Verdict, str | None], None]


class Xids:
    """Reads the kernel's log on from where it was read to last, by an earlier service too: a card
    that was released from quarantine is not put there again for the same line."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._path = pathlib.Path(CONF.state_path, "gpu-kernel-log")
        self._withheld = withheld_instances.WithheldInstances(
            pathlib.Path(CONF.state_path, "gpu-withheld-instances")
        )
        self._read_at = 0.0
        self._unread: str | None = None

    def look(self, found: Collection[GPU], put_away: PutAway) -> None:
        """Puts the cards away that the log tells of, once in ``[gpu]health_interval``.

        :param put_away: may raise OSError: then the same lines are read again
        """
        is_nvidia = any(gpu.driver == nvml.DRIVER for gpu in found)
        if not CONF.gpu.fatal_xids or not is_nvidia or time.monotonic() < self._read_at:
            return
        self._read_at = time.monotonic() + CONF.gpu.health_interval
        try:
            self._read(found, put_away)
            self._unread = None
        except Exception as error:  # whatever privsep raises: the other cards are looked at
            if str(error) != self._unread:
                LOG.warning("Xids of this host's NVIDIA GPUs are not known: %s", error)
            self._unread = str(error)

    def withheld(self, cards: Iterable[SharedCard]) -> frozenset[Slot]:
        """The slots of those MIG instances of *cards* that nobody new is given. One that is no
        longer there is forgotten: what is made in its place is another."""
        try:
            return self._withheld.slots(cards, self._roots.boot_id())
        except OSError as error:
            LOG.warning("Which MIG instances are withheld is not known: %s", error)
            return frozenset()

    def _read(self, found: Collection[GPU], put_away: PutAway) -> None:
        boot_id = self._roots.boot_id()
        position = kernel_log.load(self._path)
        known = position.sequence if position and position.boot_id == boot_id else 0
        last, lines = nova_gpu.privsep.kernel_log.xids(known)
        cards = {gpu.address: gpu for gpu in found}
        withheld = self._withheld.of_boot(boot_id)
        for xid in kernel_log.parse(lines):
            card = cards.get(xid.address)
            if card is None:
                continue
            named = _named(xid)
            verdict = health.of_xid(xid.code, xid.text, named)
            if named and xid.code == health.CONTAINED_XID:
                LOG.error(
                    "MIG instance %s of GPU %s is given to nobody new: its driver reported Xid %d "
                    "(%s); once nobody has it, destroy it, and make it again a period later "
                    "(nvidia-smi mig -dci, -dgi, -cgi), or boot the host",
                    *(named, card.address, xid.code, xid.text),
                )
                withheld |= {(card.address, named)}
            elif xid.code in CONF.gpu.fatal_xids:
                stays = xid.code == health.FALLEN_OFF_THE_BUS
                put_away(card, verdict, None if stays else boot_id)
            else:
                LOG.info("GPU %s: %s", card.address, verdict.reason)
        self._withheld.save(boot_id, withheld)
        if last != known:
            kernel_log.save(self._path, kernel_log.Position(boot_id, last))


def _named(xid: kernel_log.Xid) -> str | None:
    """``9/0``, or ``9/*`` for all of a GPU instance; ``None`` where it is the card's"""
    if xid.gpu_instance is None:
        return None
    return f"{xid.gpu_instance}/{'*' if xid.compute_instance is None else xid.compute_instance}"
