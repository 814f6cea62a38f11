# SPDX-License-Identifier: Apache-2.0
"""The cards that Nova's own PCI passthrough is told to give out: those are not offered here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oslo_serialization import jsonutils

from nova_gpu.conf import novas
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots


class DeviceSpec:
    """The devices of ``[pci]device_spec``, read by Nova's own reader.

    :raises nova.exception.NovaException: where that cannot read it
    """

    def __init__(self, device_spec: Sequence[str]) -> None:
        self._devices: Any = novas.whitelist(device_spec) if device_spec else None

    def obstacle(self, gpu: GPU, roots: Roots) -> str | None:
        """Return which function of *gpu* the option gives to instances that have an alias for it.

        ``None`` without one.

        :raises OSError, ValueError: where the card cannot be read
        """
        return self.obstacle_of(gpu.functions, roots)

    def obstacle_of(self, functions: Iterable[PciAddress], roots: Roots) -> str | None:
        """Return the reason why a card of these *functions* is not offered.

        :raises OSError, ValueError: where one of them cannot be read
        """
        for address in functions if self._devices and self._devices.specs else ():
            device = sysfs.device(address, roots)
            vendor_id, product_id = sysfs.ids(device)
            function = {
                "address": str(address),
                "vendor_id": vendor_id,
                "product_id": product_id,
                # A spec of a card's address is one of its virtual functions, too.
                "parent_addr": sysfs.link(device, "physfn"),
            }
            # Not device_assignable(), which in Nova 2024.1 does not return the spec.
            spec = next((spec for spec in self._devices.specs if spec.match(function)), None)
            if spec is not None:
                return (
                    f"[pci]device_spec = {jsonutils.dumps(spec.dev_spec_conf)} lets Nova give "
                    f"{address} to instances with a pci_passthrough:alias, and "
                    "[DEFAULT]compute_driver lets nova-gpu give it too; take it out of the former "
                    "to have it offered (an instance that has it keeps it), or out of "
                    "[gpu]addresses"
                )
        return None
