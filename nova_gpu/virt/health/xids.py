# SPDX-License-Identifier: Apache-2.0
"""Cards of which NVIDIA's driver has reported what they do not recover from by themselves."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Collection

from oslo_log import log as logging

import nova_gpu.privsep.kernel_log
from nova_gpu.conf import CONF
from nova_gpu.core import health
from nova_gpu.core.model import GPU
from nova_gpu.host.nvidia import kernel_log, nvml
from nova_gpu.host.roots import Roots

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

    def _read(self, found: Collection[GPU], put_away: PutAway) -> None:
        boot_id = self._roots.boot_id()
        position = kernel_log.load(self._path)
        known = position.sequence if position and position.boot_id == boot_id else 0
        last, lines = nova_gpu.privsep.kernel_log.xids(known)
        cards = {gpu.address: gpu for gpu in found}
        for xid in kernel_log.parse(lines):
            card = cards.get(xid.address)
            if card is None:
                continue
            verdict = health.of_xid(xid.code, xid.text)
            if xid.code in CONF.gpu.fatal_xids:
                stays = xid.code == health.FALLEN_OFF_THE_BUS
                put_away(card, verdict, None if stays else boot_id)
            else:
                LOG.info("GPU %s: %s", card.address, verdict.reason)
        if last != known:
            kernel_log.save(self._path, kernel_log.Position(boot_id, last))
