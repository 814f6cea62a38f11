# SPDX-License-Identifier: Apache-2.0
"""Cards that could not be bound to vfio-pci when a guest was last to have them."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.state import quarantine

LOG = logging.getLogger(__name__)

# What kept a card may be over at any time, and nothing tells when it is.
_RETRY_AFTER_S = 300.0


def folder() -> pathlib.Path:
    """Return where this host's are noted."""
    return pathlib.Path(CONF.state_path, "gpu-unbound")


class BindFailures:
    """The cards that could not be bound, which new instances do not get for a while.

    A claim that drew one again would fail again, while others may be free. A service that starts
    knows of none.

    :param folder: where there is a file of each meanwhile, for the commands only
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._until: dict[PciAddress, tuple[float, Unavailable]] = {}

    def add(self, card: GPU, error: exception.BindingFailed) -> None:
        reason = Unavailable(error.fact, error.remedy, Source.BINDING)
        self._until[card.address] = time.monotonic() + _RETRY_AFTER_S, reason
        try:
            quarantine.put(self._folder, quarantine.entry(card, error.fact, error.remedy))
        except OSError as failure:
            LOG.warning("Failed to record for nova-gpu list that %s: %s", error, failure)

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        now = time.monotonic()
        return {a: (reason,) for a, (until, reason) in dict(self._until).items() if until > now}

    def forget(self, address: PciAddress) -> None:
        if self._until.pop(address, None) is not None:
            self._remove(address)

    def prune(self) -> None:
        """Remove the files of those whose time is over, and what an earlier service has left."""
        with contextlib.suppress(OSError):
            for address in quarantine.load(self._folder).keys() - self.unavailable():
                self._remove(address)

    def _remove(self, address: PciAddress) -> None:
        with contextlib.suppress(OSError):  # tried again in the next period
            quarantine.release(self._folder, address)


def unavailable(folder: pathlib.Path, cards: Iterable[GPU]) -> dict[PciAddress, Reasons]:
    """Return those of *cards* that are in *folder*, none where it cannot be read."""
    try:
        entries = quarantine.load(folder)
    except OSError:
        return {}
    return {
        card.address: (
            Unavailable(
                f"it could not be given to a guest at {entry.since}, and is given to none of a new "
                f"instance for {_RETRY_AFTER_S / 60:g} minutes from then: {entry.reason}",
                entry.remedy,
                Source.BINDING,
            ),
        )
        for card in cards
        if (entry := entries.get(card.address))
    }
