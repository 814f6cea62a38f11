# SPDX-License-Identifier: Apache-2.0
"""Records of vGPUs made for instances, so that each is removed even if its instance is unknown.

Each vGPU has one file in the state path. The file is written before the vGPU is made, and removed
after the vGPU is gone. A host boot removes all vGPUs; a file that is left then only means that the
slot must be inspected. The file contains the names of the card's vGPU types, because NVIDIA's
driver does not list all of them while a vGPU exists. Writing a record raises OSError if it fails.

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

# Replaces / in file names; it does not occur in a slot or an instance's UUID.
_SEPARATOR = "@"
_NONE: Mapping[str, str] = MappingProxyType({})


class MadeVGPUs:
    """The records of the vGPUs that nova-gpu made, one file each in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        # Held by writers. Readers need no lock, because a change replaces the whole mapping.
        self._lock = threading.Lock()
        self._instances: Mapping[Slot, str] = {}
        self._names: Mapping[Slot, Mapping[str, str]] = {}
        self._is_read = False
        self.read_again()

    def read_again(self) -> frozenset[Slot]:
        """Read the records of an earlier service, unless they were read already.

        Return the slots that this call added; none if the folder cannot be read.
        """
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
        return self._instances

    def by_instance(self) -> dict[str, frozenset[Slot]]:
        """Return the slots of the vGPUs that were made for each instance, by its UUID."""
        slots: dict[str, frozenset[Slot]] = {}
        for slot, instance_uuid in self._instances.items():
            slots[instance_uuid] = slots.get(instance_uuid, frozenset()) | {slot}
        return slots

    def recorded_types(self) -> division.TypesByFunction:
        """Return the vGPU types of cards with vGPUs in the files, by PCI function and type id."""
        return {
            slot.parent: {type_id: sriov.named(type_id, name) for type_id, name in names.items()}
            for slot, names in self._names.items()
        }

    def add(self, slot: Slot, instance_uuid: str, names: Mapping[str, str] = _NONE) -> None:
        """Write the record of a vGPU.

        :param names: the names of the vGPU types of the slot's card, by type id
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
            LOG.warning("vGPU %s was removed, but its record cannot be deleted: %s", slot, error)
        with self._lock:
            left = dict(self._instances)
            if left.get(slot) == instance_uuid:
                del left[slot]
            self._instances = left

    def _path(self, slot: Slot, instance_uuid: str) -> pathlib.Path:
        return self._folder / f"{instance_uuid}/{slot}".replace("/", _SEPARATOR)


def _load(folder: pathlib.Path) -> tuple[dict[Slot, str], dict[Slot, Mapping[str, str]]]:
    """Return the instance's UUID and the card's vGPU type names of each record, by slot."""
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
    """Return the names of vGPU types in a record, by the type's id.

    The result is empty if the file is not as :meth:`MadeVGPUs.add` writes it.
    """
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return _NONE
    if not isinstance(content, dict):
        return _NONE
    return {key: item for key, item in content.items() if is_type_id(key) and isinstance(item, str)}
