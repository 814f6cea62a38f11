# SPDX-License-Identifier: Apache-2.0
"""Privileged reading of the ACS of PCI Express ports, which the kernel shows to root only."""

from __future__ import annotations

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import model
from nova_gpu.host.pci import acs
from nova_gpu.host.roots import Roots


@nova_gpu.privsep.entrypoint.entrypoint
def read(ports: list[str]) -> dict[str, str | None]:
    """Return what is wrong with each port, as :func:`nova_gpu.host.pci.acs.read`, by address."""
    addresses = [str(model.PciAddress.parse(port)) for port in ports]
    return acs.read(addresses, Roots.of(CONF.gpu))
