# SPDX-License-Identifier: Apache-2.0
"""The cards that processes of a KVM host have open; guests cannot get them now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import open_devices, passthrough

LOG = logging.getLogger(__name__)


class OpenCards:
    """The search for cards that the host's own processes have open; it logs changes."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._holders: Mapping[str, str] = {}

    def reasons(self, cards: Iterable[GPU]) -> Mapping[PciAddress, str]:
        """Return which of *cards* the host's processes have open, by address, with the reason.

        Such a card cannot be bound for a guest, so the scheduler must not count on it. A card that
        is bound to vfio-pci is skipped: only its guest can have it open. If the host's processes
        cannot be read, the result is empty.
        """
        hosts_own = [
            str(card.address) for card in cards if not passthrough.is_with_vfio(card, self._roots)
        ]
        if not hosts_own:
            return {}
        if not self._roots.shows_all_processes():
            reason = f"{open_devices.UNSEEN}; {open_devices.UNSEEN_REMEDY}"
            return {PciAddress.parse(address): reason for address in hosts_own}
        try:
            with boundary.crossed():
                devices = nova_gpu.privsep.vfio.in_use(hosts_own)
        except boundary.Failure as error:
            LOG.warning(
                "Cannot tell whether a process has a GPU open, so all count as free: %s", error
            )
            return {}
        texts = {address: open_devices.as_text(holders) for address, holders in devices.items()}
        if texts != self._holders:
            for address, who in texts.items():
                LOG.warning("GPU %s is not offered while the host uses it: %s", address, who)
        self._holders = texts
        reasons = {a: "; ".join(open_devices.reason(holders)) for a, holders in devices.items()}
        return {PciAddress.parse(address): reason for address, reason in reasons.items()}
