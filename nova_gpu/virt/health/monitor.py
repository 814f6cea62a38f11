# SPDX-License-Identifier: Apache-2.0
"""Health of a host's cards, read in every period and never while a claim waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import health_verdict, unavailability
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Repair, Scope, Source, Unavailable
from nova_gpu.host import pci_errors as host_health
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import iommu
from nova_gpu.host.roots import Roots

LOG = logging.getLogger(__name__)

SILENT = Unavailable(
    "it no longer answers on the PCI bus", "", Source.BUS, Scope.ALL, Repair.REBOOT
)
LOST = Unavailable("NVIDIA's driver has lost it", "", Source.NVML, Scope.ALL, Repair.REBOOT)
_REFUSED = "see the kernel's log about it (NVRM, RmInitAdapter), and reset, reseat or replace it"

# Puts a card into quarantine for a fault: with a boot id until the host's next boot, without until
# an operator releases it
Quarantine = Callable[[GPU, Unavailable, str | None], None]


class Watch:
    """The faults of a host's cards by sysfs and NVML, in memory only.

    PCIe errors count from the first reading of a card on.

    :param asks_nvml: whether NVML may open the cards: guests use them by the host's driver
    """

    def __init__(self, roots: Roots, *, asks_nvml: bool) -> None:
        self._roots = roots
        self._asks_nvml = CONF.gpu.nvml and asks_nvml
        self._first: dict[PciAddress, health_verdict.ErrorCounts] = {}
        self._correctable: dict[PciAddress, int] = {}
        self._risen: dict[PciAddress, Unavailable] = {}
        self._answers: Mapping[PciAddress, health_verdict.NvmlHealth] = {}
        self._ask_at = 0.0

    def look(self, gpus: Collection[GPU]) -> dict[PciAddress, Reasons]:
        """Read the health of *gpus*, and return the faults of each faulty card, by address.

        Read sysfs at each call, and ask NVML once in ``[gpu]health_interval``, in a separate
        process. If NVML does not answer in time, its last answer counts.
        """
        if time.monotonic() >= self._ask_at:
            self._ask_nvml(gpus)
            self._ask_at = time.monotonic() + CONF.gpu.health_interval
        self._count(gpus)
        return unavailability.merge({gpu.address: self._faults(gpu) for gpu in gpus})

    def _faults(self, gpu: GPU) -> Reasons:
        faults = (
            SILENT if host_health.silent(gpu, self._roots) else None,
            host_health.unusable(gpu, self._roots),
            _unusable(self._tells(gpu)),
            self._risen.get(gpu.address) or health_verdict.of_nvml(self._tells(gpu)),
        )
        return tuple(fault for fault in faults if fault)

    def mended(self, address: PciAddress) -> None:
        """Count the PCIe errors of a card from zero again, because it was reset or is gone."""
        for counts in (self._first, self._correctable, self._risen):
            counts.pop(address, None)

    def _tells(self, gpu: GPU) -> health_verdict.NvmlHealth:
        return self._answers.get(gpu.address, health_verdict.NvmlHealth())

    def _ask_nvml(self, gpus: Collection[GPU]) -> None:
        held = [gpu.address for gpu in gpus if gpu.driver == nvml.DRIVER]
        if self._asks_nvml and held:
            answer = nvml.health(held, CONF.gpu.nvml_timeout)
            known = {
                address: self._answers[address] for address in held if address in self._answers
            }
            self._answers = {**known, **answer}

    def _count(self, gpus: Collection[GPU]) -> None:
        here = {gpu.address for gpu in gpus}
        # A copy: a release in another thread may reset a card and remove its entry.
        for address in tuple(self._first):
            if address not in here:
                self.mended(address)  # if the card returns, its errors count from zero
        for gpu in gpus:
            now = host_health.bus_errors(gpu, self._roots)
            if now is not None:
                self._compare(gpu.address, now)

    def _compare(self, address: PciAddress, now: health_verdict.ErrorCounts) -> None:
        first = self._first.setdefault(address, now)
        if now.fatal < first.fatal or now.nonfatal < first.nonfatal:
            self.mended(address)
            first = self._first[address] = now
        # The fault keeps the numbers of the first rise, so that it is reported only once.
        if address not in self._risen and (verdict := health_verdict.of_bus_errors(first, now)):
            self._risen[address] = verdict
        before = self._correctable.setdefault(address, now.correctable)
        if now.correctable > before:
            LOG.info(
                "GPU %s: its link corrected %d more PCIe errors, %d since the card was detected",
                address,
                now.correctable - before,
                now.correctable,
            )
        self._correctable[address] = now.correctable


def _unusable(answer: health_verdict.NvmlHealth) -> Unavailable | None:
    """Return why no guest can use a card, by NVML's answer; ``None`` if one can."""
    if answer.lost:
        return LOST
    if not answer.refused:
        return None
    reason = f"NVIDIA's driver has it and NVML cannot open it ({answer.refused})"
    return Unavailable(reason, _REFUSED, Source.NVML, Scope.ALL, Repair.REBOOT)


def quarantine_left_mig(card: GPU, roots: Roots, quarantine: Quarantine) -> None:
    """Put *card* into quarantine if it is in MIG mode after its cleaning; raise nothing.

    Root in a guest can turn MIG mode on, and a card that keeps the mode would be useless to the
    next guest. Only NVML reports the mode, and only once the host's driver has the card again.
    """
    try:
        if not CONF.gpu.nvml or iommu.driver(card.address, roots) != nvml.DRIVER:
            return
        modes = nvml.modes([card.address], CONF.gpu.nvml_timeout).get(card.address)
        if modes is not None and modes.mig:
            quarantine(card, health_verdict.of_mig_mode(), None)
    except OSError as error:
        LOG.error(
            "Failed to write the quarantine record of GPU %s, which is in MIG mode after its "
            "cleaning: %s",
            card.address,
            error,
        )
