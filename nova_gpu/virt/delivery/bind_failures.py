# SPDX-License-Identifier: Apache-2.0
"""Cards whose last binding to vfio-pci, for the start of a guest, failed."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

from nova_gpu.conf import NOVAS
from nova_gpu.core import exception
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.state import quarantine

LOG = logging.getLogger(__name__)

# The cause of a failure may end at any time, and no event reports its end.
_RETRY_AFTER_S = 300.0


def folder() -> pathlib.Path:
    """Return the folder with one file for each card of this host that could not be bound."""
    return pathlib.Path(NOVAS.state_path, "gpu-unbound")


class BindFailures:
    """The cards that could not be bound to vfio-pci; new instances do not get them for 5 minutes.

    A new claim of such a card would fail again, while other cards may be free. The list is in
    memory, and is empty when the service starts.

    :param folder: the folder with a file for each card on the list; only the commands read it
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
            LOG.warning(
                "nova-gpu list does not show the failed binding of GPU %s, because its file cannot "
                "be written: %s",
                card.address,
                failure,
            )

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        now = time.monotonic()
        return {a: (reason,) for a, (until, reason) in dict(self._until).items() if until > now}

    def forget(self, address: PciAddress) -> None:
        if self._until.pop(address, None) is not None:
            self._remove(address)

    def prune(self) -> None:
        """Remove the files of cards that new instances get again, and of an earlier service."""
        with contextlib.suppress(OSError):
            for address in quarantine.load(self._folder).keys() - self.unavailable():
                self._remove(address)

    def _remove(self, address: PciAddress) -> None:
        with contextlib.suppress(OSError):  # tried again in the next period
            quarantine.release(self._folder, address)


def unavailable(folder: pathlib.Path, cards: Iterable[GPU]) -> dict[PciAddress, Reasons]:
    """Return which of *cards* could not be bound, by their files in *folder*, with the reasons.

    The commands call it. The result is empty if the folder cannot be read.
    """
    try:
        entries = quarantine.load(folder)
    except OSError:
        return {}
    return {
        card.address: (
            Unavailable(
                f"it could not be bound for a guest at {entry.since}, and new instances do not get "
                f"it for {_RETRY_AFTER_S / 60:g} minutes from then: {entry.reason}",
                entry.remedy,
                Source.BINDING,
            ),
        )
        for card in cards
        if (entry := entries.get(card.address))
    }
