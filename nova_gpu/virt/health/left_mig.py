# SPDX-License-Identifier: Apache-2.0
"""Cards of VMs that come back from a guest in MIG mode.

The guest's root turns it on, and a card that remembers it would be of no use to the next one.
NVML knows, and only of a card that the host's driver has again.
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import health
from nova_gpu.core.model import GPU
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import iommu

LOG = logging.getLogger(__name__)

PutAway = Callable[[GPU, health.Verdict, str | None], None]


def judge(card: GPU, roots: Roots, put_away: PutAway) -> None:
    """Has *card* put away where the host's driver has it and it is in MIG mode. Raises nothing."""
    try:
        if not CONF.gpu.nvml or iommu.driver(card.address, roots) != nvml.DRIVER:
            return
        told = nvml.modes([card.address], CONF.gpu.nvml_timeout).get(card.address)
        if told is not None and told.mig:
            put_away(card, health.of_mig_mode(), None)
    except OSError as error:
        LOG.error("Whether GPU %s was left in MIG mode is not noted: %s", card.address, error)
