# SPDX-License-Identifier: Apache-2.0
"""Steps of repairs that need root and that nothing else does."""

from __future__ import annotations

import os

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode, PciAddress
from nova_gpu.host import child_process, clean_command
from nova_gpu.host.pci import privileged_cards


@nova_gpu.privsep.entrypoint.entrypoint
def load() -> None:
    """Do nothing; the call imports this module in the privileged process."""


@nova_gpu.privsep.entrypoint.entrypoint
def reset_by_driver(address: str) -> None:
    """Let NVIDIA's driver, which has the card, reset it; the driver refuses a card in use.

    :raises NotClean: if that fails
    """
    card = privileged_cards.card(PciAddress.parse(address), CONF.gpu)
    if card is None:
        raise exception.NotClean(address, privileged_cards.REASON, privileged_cards.REMEDY)
    environment = clean_command.environment(card, DeliveryMode.LXC)
    argv = ["nvidia-smi", "--gpu-reset", "-i", address]
    remedy = "see the kernel's log about it"
    try:
        status, output = child_process.status_and_output(argv, CONF.gpu.clean_timeout, environment)
    except child_process.Failed as error:
        raise exception.NotClean(address, f"nvidia-smi --gpu-reset {error}", remedy) from error
    if status:
        last = os.fsdecode(output).strip().rpartition("\n")[2]
        raise exception.NotClean(
            address, f"nvidia-smi --gpu-reset ended with {status}: {last}", remedy
        )
