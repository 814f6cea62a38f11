# SPDX-License-Identifier: Apache-2.0
"""The cards in ``[pci]device_spec``, which Nova's own PCI passthrough gives, and not nova-gpu."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oslo_serialization import jsonutils

from nova_gpu.conf import novas
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots


class DeviceSpec:
    """The devices of ``[pci]device_spec``, parsed by Nova's own code.

    :raises nova.exception.NovaException: if Nova cannot parse it
    """

    def __init__(self, device_spec: Sequence[str]) -> None:
        self._devices: Any = novas.whitelist(device_spec) if device_spec else None

    def obstacle(self, functions: Iterable[PciAddress], roots: Roots) -> str | None:
        """Return why a card is not offered: Nova may give one of these *functions* by this option.

        Return ``None`` if the option matches none of them.

        :raises OSError, ValueError: if one of them cannot be read
        """
        for address in functions:
            if (spec := self._spec(address, roots)) is not None:
                return (
                    f"[pci]device_spec = {jsonutils.dumps(spec.dev_spec_conf)} lets Nova give "
                    f"{address} to instances with a pci_passthrough:alias, and "
                    "[DEFAULT]compute_driver lets nova-gpu give it too; take it out of the former "
                    "to have it offered (an instance that has it keeps it), or out of "
                    "[gpu]addresses"
                )
        return None

    def tags(self, address: PciAddress, roots: Roots) -> dict[str, str]:
        """Return what the option says of a function besides which one it is, such as its traits.

        :raises OSError, ValueError: if it cannot be read
        """
        spec = self._spec(address, roots)
        return dict(spec.get_tags()) if spec is not None else {}

    def _spec(self, address: PciAddress, roots: Roots) -> Any:
        """Return the first member of the option that matches a function, else ``None``."""
        if not (self._devices and self._devices.specs):
            return None
        device = sysfs.device(address, roots)
        vendor_id, product_id = sysfs.ids(device)
        function = {
            "address": str(address),
            "vendor_id": vendor_id,
            "product_id": product_id,
            # A spec with the address of a card also matches its virtual functions.
            "parent_addr": sysfs.link(device, "physfn"),
        }
        # Nova's device_assignable() does not return the spec in 2024.1.
        return next((spec for spec in self._devices.specs if spec.match(function)), None)
