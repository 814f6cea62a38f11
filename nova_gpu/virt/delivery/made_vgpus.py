# SPDX-License-Identifier: Apache-2.0
"""Records of vGPUs made for instances, so that each is removed even if its instance is unknown.

One file for each, in the state path. It is written before the vGPU is made and removed after that
is gone; after a host boot, which removes all of them, it only says that the slot has to be
inspected. In it are the types of the card, of which NVIDIA's driver does not list all while a vGPU
is there.
"""

from __future__ import annotations

import json
import pathlib
import threading
import uuid
from collections.abc import Mapping
from types import MappingProxyType

from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.vgpu.vgpu import Slot, is_type_id
from nova_gpu.host.state import files
from nova_gpu.host.vgpu import division, sriov

LOG = logging.getLogger(__name__)

# In none of the parts of a slot.
_SEPARATOR = "@"
_NONE: Mapping[str, str] = MappingProxyType({})


class MadeVGPUs:
    """The records in a folder.

    :param folder: need not exist yet
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        # For those who change it. What is read is one mapping or the next, never one in between.
        self._lock = threading.Lock()
        self._instances: Mapping[Slot, str] = {}
        self._names: Mapping[Slot, Mapping[str, str]] = {}
        self._is_read = False
        self.read_again()

    def read_again(self) -> frozenset[Slot]:
        """Read what an earlier service noted, unless that was done; return the slots it adds."""
        if self._is_read:
            return frozenset()
        try:
            instances, names = _load(self._folder)
        except OSError as error:
            LOG.error(
                "Cannot read which vGPUs nova-gpu created, will retry in every period: %s", error
            )
            return frozenset()
        with self._lock:
            added = frozenset(instances.keys() - self._instances.keys())
            self._instances = {**instances, **self._instances}
            self._names, self._is_read = names, True
        return added

    def instances(self) -> Mapping[Slot, str]:
        """Return the uuid of the instance for which something was made, by slot."""
        return self._instances

    def told(self) -> division.Told:
        """Return the types of the cards of these slots, as their maker knew them."""
        return {
            slot.parent: {type_id: sriov.named(type_id, name) for type_id, name in names.items()}
            for slot, names in self._names.items()
        }

    def add(self, slot: Slot, instance_uuid: str, names: Mapping[str, str] = _NONE) -> None:
        """Write the record of a vGPU.

        :param names: of the types of the slot's card, by id
        :raises OSError: where it cannot be written down
        """
        text = json.dumps(dict(names)) if names else ""
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write(self._path(slot, instance_uuid), text.encode())
        with self._lock:
            self._instances = {**self._instances, slot: instance_uuid}

    def remove(self, slot: Slot, instance_uuid: str) -> None:
        try:
            files.remove(self._path(slot, instance_uuid))
        except OSError as error:
            LOG.warning("Failed to delete the record of vGPU %s, now given back: %s", slot, error)
        with self._lock:
            left = dict(self._instances)
            if left.get(slot) == instance_uuid:
                del left[slot]
            self._instances = left

    def _path(self, slot: Slot, instance_uuid: str) -> pathlib.Path:
        return self._folder / f"{instance_uuid}/{slot}".replace("/", _SEPARATOR)


def _load(folder: pathlib.Path) -> tuple[dict[Slot, str], dict[Slot, Mapping[str, str]]]:
    """Read the instances and the type names of all records.

    :raises OSError: where the folder cannot be listed
    """
    instances, names = {}, {}
    for path in (folder / name for name in files.names(folder)):
        instance_uuid, _, text = path.name.replace(_SEPARATOR, "/").partition("/")
        try:
            slot, instance_uuid = Slot.parse(text), str(uuid.UUID(instance_uuid))
        except (exception.InvalidValue, ValueError):
            LOG.warning("Ignored %s, which does not describe a vGPU", path)
            continue
        instances[slot], names[slot] = instance_uuid, _names(path)
    return instances, names


def _names(path: pathlib.Path) -> Mapping[str, str]:
    """Read the names; none where it is no file that :meth:`MadeVGPUs.add` wrote to the end."""
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return _NONE
    if not isinstance(content, dict):
        return _NONE
    return {key: item for key, item in content.items() if is_type_id(key) and isinstance(item, str)}
