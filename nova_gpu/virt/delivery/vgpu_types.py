# SPDX-License-Identifier: Apache-2.0
"""NVML's facts about the vGPU types of this host's cards, read again if a card's layout changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, VGPUType
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml, nvml_vgpus
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import division

LOG = logging.getLogger(__name__)


class VGPUTypes:
    """NVML's facts about vGPU types, cached by card.

    A query of NVML opens the card, so NVML is queried seldom, and only about divided cards, which
    NVIDIA's driver keeps. For mediated devices sysfs has all facts except how many of a type one
    guest can have.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._layouts: dict[PciAddress, tuple[str, ...]] = {}
        self._nvml_types: dict[PciAddress, nvml_vgpus.Types] = {}
        self._ask_at = 0.0

    def complete(
        self, cards: Iterable[GPU], divided: Mapping[PciAddress, DividedCard]
    ) -> dict[PciAddress, DividedCard]:
        """Return *divided* with NVML's facts added to the vGPU types of each card.

        A card is returned unchanged if NVML has not answered about it; a failed query is logged.
        """
        typed = {
            card.address: self._layout(card)
            for card in cards
            if card.address in divided and _is_nvidias(card, divided[card.address])
        }
        if typed and CONF.gpu.nvml:
            self._ask(typed)
        by_card = dict(divided)
        for address in typed.keys() & self._nvml_types.keys():
            reported = self._nvml_types[address]
            if not _hides_types(divided[address]):
                types = divided[address].types
                reported = {
                    item: VGPUType(item, per_guest=facts.per_guest)
                    for item, facts in reported.items()
                    if item in types
                }
            by_card[address] = division.with_facts(divided[address], reported)
        return by_card

    def forget(self, card: PciAddress) -> None:
        """Discard the facts about *card*, so that NVML is asked about it by the next call."""
        self._nvml_types.pop(card, None)
        self._ask_at = 0.0

    def _ask(self, typed: Mapping[PciAddress, tuple[str, ...]]) -> None:
        news = sorted(a for a in typed if a in self._layouts and self._layouts[a] != typed[a])
        missing = sorted(typed.keys() - self._nvml_types.keys())
        if missing and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + CONF.gpu.health_interval
            news = sorted({*news, *missing})
        if not news:
            return
        try:
            with boundary.crossed():
                answer = nova_gpu.privsep.vgpu.types([str(item) for item in news])
        except boundary.Failure as error:
            LOG.warning(
                "NVML does not answer about this host's vGPU types, whose facts stay unknown: %s",
                error,
            )
            return
        types = nvml_vgpus.parse(answer)
        for address in types.keys() & typed.keys():
            self._nvml_types[address], self._layouts[address] = types[address], typed[address]

    def _layout(self, card: GPU) -> tuple[str, ...]:
        """Return the names of the card's GPU instances, sorted, from the driver's /proc files.

        The result is empty if the card is not in MIG mode, or cannot be read.
        """
        minor = gpu_instances.gpu_minor(card.address, self._roots)
        folder = self._roots.proc / f"driver/nvidia/capabilities/gpu{minor}/mig"
        try:
            return tuple(sorted(name for name in os.listdir(folder) if name.startswith("gi")))
        except OSError:
            return ()


def _is_nvidias(card: GPU, divided: DividedCard) -> bool:
    is_mediated = any(parent.kind.is_mediated for parent in divided.parents.values())
    return _hides_types(divided) or (card.driver == nvml.DRIVER and is_mediated)


def _hides_types(card: DividedCard) -> bool:
    return any(parent.kind.hides_types for parent in card.parents.values())
