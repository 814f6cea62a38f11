# SPDX-License-Identifier: Apache-2.0
"""vGPUs of Nova's own (``[devices]enabled_mdev_types``), told apart from those of this package.

Both are of the resource class ``VGPU`` and mediated devices of a guest: Nova's driver would make
and render ours as well.
"""

from __future__ import annotations

from typing import Any

from nova import objects

from nova_gpu.core import device, names
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.inventory.assigned import Assigned
from nova_gpu.virt.usage.ledger import Ledger


def allocations(assigned: Assigned, found: Any) -> Any:
    """The allocations *found* of an instance, but for those of this host's groups of vGPUs"""
    has_any = any(names.VGPU_RESOURCE_CLASS in each["resources"] for each in (found or {}).values())
    if not has_any or not assigned.parts:
        return found
    assigned.ask_for_providers()
    ours = set(assigned.parts.provider_uuids.values())
    return {uuid: found[uuid] for uuid in found if uuid not in ours}


def mediated_devices(
    assigned: Assigned, ledger: Ledger, instance: objects.Instance | None, found: dict[str, str]
) -> dict[str, str]:
    """The mediated devices *found* of the *instance* that were not made by us: Nova renders these.

    Of all instances all are told, as it is asked then which are nobody's.
    """
    if instance is None or not found or not assigned.parts:
        return found
    assigned.ask_for_providers()
    # What the instance has, and what its domain names or named until it was taken away
    named = device.slots(ledger.now.kept_by(instance.uuid))
    ours = guest_config.uuids(instance.uuid, named | assigned.parts.devices(instance.resources))
    return {uuid: guest for uuid, guest in found.items() if uuid not in ours}
