# SPDX-License-Identifier: Apache-2.0
"""Privileged readings of what the kernel shows to root only."""

from __future__ import annotations

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import model
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.host.pci import acs, identity
from nova_gpu.host.roots import Roots

_TIMEOUT_S = 10.0


@nova_gpu.privsep.entrypoint.entrypoint
def port_faults(ports: list[str]) -> dict[str, str | None]:
    """Return what is wrong with the ACS of each port, as :func:`nova_gpu.host.pci.acs.read`."""
    addresses = [str(model.PciAddress.parse(port)) for port in ports]
    return acs.read(addresses, Roots.of(CONF.gpu))


@nova_gpu.privsep.entrypoint.entrypoint
def serial_numbers(addresses: list[str]) -> dict[str, dict[str, str]]:
    """Return the PCI Express serial numbers of cards that have one, by address and kind."""
    roots = Roots.of(CONF.gpu)
    numbers = {a: identity.serial_number(model.PciAddress.parse(a), roots) for a in addresses}
    return {address: {"pcie": number} for address, number in numbers.items() if number}


@nova_gpu.privsep.entrypoint.entrypoint
def xids(known: int) -> tuple[int, list[str]]:
    """Return the number of the newest record of the kernel's log, and newer lines about Xids.

    :raises KernelLogUnreadable: if the log cannot be read in time
    """
    return kernel_log.read(int(known), Roots.of(CONF.gpu), _TIMEOUT_S)
