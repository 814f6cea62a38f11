# SPDX-License-Identifier: Apache-2.0
"""The division of cards into vGPUs by the options, when nova-compute starts."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Scope, Source, Unavailable
from nova_gpu.host.pci import selection
from nova_gpu.host.state import files
from nova_gpu.host.vgpu import division, preparation
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)


class CardDivision:
    """The division of one host's cards.

    ``unprepared``: the cards of which a step of the preparation has failed.
    """

    def __init__(self, discovery: Discovery, ledger: Ledger) -> None:
        self._discovery = discovery
        self._ledger = ledger
        self.unprepared: dict[PciAddress, Reasons] = {}

    def divide(self) -> bool:
        """Divide cards as ``[gpu]virtual_functions`` or ``mig_profile`` says, at service start.

        Cards that an instance or a domain has are left as they are.

        :returns: whether the options name any cards to divide, divided or not
        :raises DiscoveryFailed: if sysfs cannot be read
        """
        deliveries = self._discovery.deliveries
        named = {
            card: wanted
            for card in (self._discovery.find() if deliveries.wanted else ())
            if (wanted := selection.value_of(card, deliveries.wanted)) is not None
        }
        if CONF.gpu.divide_command and not any(map(self._is_to_prepare, named)):
            LOG.warning(
                "[gpu]divide_command runs for no card of this host: it is for cards of NVIDIA's "
                "that [gpu]virtual_functions names, and not for hosts of containers; name the "
                "cards there, or take the option out of this host's nova.conf"
            )
        usage = self._ledger.now
        taken = usage.counted() | usage.taken()
        for card, wanted in named.items():
            if card.address in taken:
                continue
            is_prepared = False
            try:
                with boundary.crossed():
                    is_prepared = self._is_prepared(card)
                    if not is_prepared:
                        self._record(card).unlink(missing_ok=True)
                        nova_gpu.privsep.vgpu.begin_preparation(str(card.address))
                    deliveries.divide(str(card.address), wanted)
                    if not is_prepared:
                        self._prepare(card)
            except (boundary.Failure, OSError) as error:
                LOG.error(
                    "Failed to divide GPU %s, will retry at the next start of nova-compute: %s",
                    card.address,
                    error,
                )
                if not is_prepared:
                    reason = Unavailable(str(error), "", Source.DIVISION, Scope.ALL)
                    self.unprepared[card.address] = (reason,)
        return bool(deliveries.wanted)

    def _is_to_prepare(self, card: GPU) -> bool:
        is_container_host = self._discovery.delivery.shares_driver
        return not is_container_host and bool(preparation.of(card, CONF.gpu))

    def _is_prepared(self, card: GPU) -> bool:
        """Return whether nothing is to be set on *card* before its first vGPU.

        That is done on cards of NVIDIA's, once since the host booted and for each change of the
        options. A card that has vGPUs already is left as it is.

        :raises OSError: if its vGPUs, or the id of the boot, cannot be read
        """
        if not self._is_to_prepare(card):
            return True
        done = self._done(card)
        with contextlib.suppress(OSError, ValueError):
            if files.read_json(self._record(card)) == done:
                return True
        divided = division.divided([card], self._discovery.roots).get(card.address)
        if not (divided and any(parent.made for parent in divided.parents.values())):
            return False
        LOG.warning(
            "GPU %s has vGPUs: what the options set on it before its first vGPU is set when "
            "nova-compute starts while it has none",
            card.address,
        )
        return True

    def _prepare(self, card: GPU) -> None:
        """Set what the options want of *card*, and run ``[gpu]divide_command``.

        What did not succeed, because nova-compute died for example, is repeated at the next start.

        :raises DeviceUnavailable, InvalidOption: if it fails
        :raises OSError: if its success cannot be recorded
        """
        self._discovery.deliveries.forget_facts(card.address)
        output = nova_gpu.privsep.vgpu.finish_preparation(str(card.address))
        LOG.info("Prepared GPU %s for vGPUs: %s", card.address, output.strip())
        path = self._record(card)
        path.parent.mkdir(exist_ok=True)
        files.write_json(path, self._done(card))

    def _done(self, card: GPU) -> dict[str, object]:
        """Return the record that what the options want of *card* now was set since the boot."""
        wanted = dataclasses.asdict(preparation.of(card, CONF.gpu))
        return {"boot_id": self._discovery.roots.boot_id(), **wanted}

    def _record(self, card: GPU) -> pathlib.Path:
        return self._discovery.divided / str(card.address)
