# SPDX-License-Identifier: Apache-2.0
"""The types of mediated devices that stock Nova makes, by ``[devices]enabled_mdev_types``."""

from __future__ import annotations

from nova.conf import devices

from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu_migrate.core.stock_holding import MdevType


def read() -> tuple[MdevType, ...]:
    """Return the types that the options of this host name, as Nova reads them.

    One without addresses is for all other functions; Nova counts it as ``VGPU``
    (``LibvirtDriver._get_resource_class_for_device``).
    """
    devices.register_dynamic_opts(CONF)
    types = []
    for type_id in CONF.devices.enabled_mdev_types:
        section = getattr(CONF, f"mdev_{type_id}")
        addresses = frozenset(section.device_addresses)
        resource_class = section.mdev_class if addresses else names.VGPU_RESOURCE_CLASS
        types.append(MdevType(type_id, resource_class, addresses))
    return tuple(types)
