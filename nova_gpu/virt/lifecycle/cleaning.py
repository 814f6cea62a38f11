# SPDX-License-Identifier: Apache-2.0
"""Cleaning of a card, or of a MIG instance, between two guests.

A whole card of a KVM guest is reset by :func:`nova_gpu.host.vfio.binding.reset`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from oslo_log import log as logging

import nova_gpu.privsep.cleaning
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import clean_command
from nova_gpu.host.roots import Roots
from nova_gpu.virt import counters
from nova_gpu.virt.delivery.delivery import Delivery

LOG = logging.getLogger(__name__)

# How many lines of the command's output are logged at most, the last ones
_LINES = 100


class Cleaning:
    """The cleaning of devices on this host.

    It resets a card or ends leftover processes, as the device's delivery does, and then runs
    ``[gpu]clean_command``.

    :raises InvalidOption: if users other than root can change the program of that command
    """

    def __init__(self, delivery: Delivery, roots: Roots) -> None:
        self._delivery = delivery
        self._roots = roots
        self._command = CONF.gpu.clean_command
        if self._command:
            clean_command.check(self._command)

    def clean(self, card: GPU) -> bool:
        """Clean *card* after its last guest, and return whether it was reset.

        :raises NotClean: if the cleaning failed, or if its success is unknown
        :raises NotCleanedYet: if a driver or process does not release the card; retry later
        """
        with self._judged(str(card.address)):
            was_reset = self._delivery.clean(card)
            if self._command:
                self._run_command(str(card.address))
        return was_reset

    def clean_part(self, way: Delivery, slot: Slot) -> None:
        """Clean the part at *slot*, such as a MIG instance, which stays between two guests.

        :param way: the delivery of the part
        :raises NotClean: if the cleaning failed, or if its success is unknown
        """
        with self._judged(str(slot)):
            if way.clean(slot) and self._command:
                self._run_command(str(slot))

    @contextlib.contextmanager
    def _judged(self, device: str) -> Iterator[None]:
        """Wrap a cleaning: time it, and raise NotClean or NotCleanedYet for each failure.

        NotCleanedYet replaces BindingFailed, NotClean any other error.
        """
        try:
            with (
                boundary.crossed(exception.NotClean, exception.BindingFailed),
                self._delivery.share.one(),
            ):
                begin, is_clean = time.monotonic(), False
                try:
                    yield
                    is_clean = True
                finally:
                    counters.cleaned(time.monotonic() - begin, clean=is_clean)
        except exception.NotClean:
            raise
        except exception.BindingFailed as error:
            raise exception.NotCleanedYet(device, error.fact, error.remedy) from error
        except boundary.Failure as error:
            raise exception.NotClean(
                device,
                f"it could not be cleaned: {error.error!r}",
                "see the messages before this one in nova-compute's log",
            ) from error

    def _run_command(self, address: str) -> None:
        status, output = nova_gpu.privsep.cleaning.run_command(address)
        lines = output.splitlines()
        for line in lines[-_LINES:]:
            LOG.info("[gpu]clean_command for GPU %s: %s", address, line)
        if status != 0:
            last = lines[-1] if lines else "no message"
            raise exception.NotClean(
                address,
                f"[gpu]clean_command ended with {status}: {last}",
                "see the command's output in nova-compute's log",
            )


def words(was_reset: bool) -> str:
    """Return the text about how a device was cleaned, for the proof that it is clean."""
    steps = ["reset"] * was_reset + ["[gpu]clean_command"] * bool(CONF.gpu.clean_command)
    return " and ".join(steps) or "its guest's processes have ended"
