# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs were made for which instances, so that each is removed although nobody knows its
instance any more.

One empty file for each, in the state path. It is written before the vGPU is made and removed after
that is gone; after a host boot, which removes all of them, it says no more than that the slot has
to be looked at.
"""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Mapping

from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.vgpu import Slot

LOG = logging.getLogger(__name__)

# In none of the parts of a slot.
_SEPARATOR = "@"


class MadeVGPUs:
    """:param folder: need not exist yet"""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._instances = _load(folder)

    def instances(self) -> Mapping[Slot, str]:
        """The uuid of the instance for which something was made, by slot"""
        return self._instances

    def add(self, slot: Slot, instance_uuid: str) -> None:
        """:raises OSError: where it cannot be written down"""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(slot, instance_uuid).touch()
        self._instances = {**self._instances, slot: instance_uuid}

    def remove(self, slot: Slot, instance_uuid: str) -> None:
        try:
            self._path(slot, instance_uuid).unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("vGPU %s is noted as one to be removed: %s", slot, error)
        left = dict(self._instances)
        if left.get(slot) == instance_uuid:
            del left[slot]
        self._instances = left

    def _path(self, slot: Slot, instance_uuid: str) -> pathlib.Path:
        return self._folder / f"{instance_uuid}/{slot}".replace("/", _SEPARATOR)


def _load(folder: pathlib.Path) -> dict[Slot, str]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        LOG.error("Which vGPUs were made here cannot be read: %s", error)
        return {}
    found = {}
    for name in names:
        instance_uuid, _, slot = name.replace(_SEPARATOR, "/").partition("/")
        try:
            found[Slot.parse(slot)] = str(uuid.UUID(instance_uuid))
        except (exception.InvalidValue, ValueError):
            LOG.warning("%s is no file about a vGPU, and is passed over", folder / name)
    return found
