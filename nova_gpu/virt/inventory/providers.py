# SPDX-License-Identifier: Apache-2.0
"""Which providers stand for a host's groups, before the first provider tree was made.

After a power failure guests are resumed as soon as their host is up, and Placement may be up only
later. So what the last tree had is kept in the state path::

    {"node": "compute-7", "providers": {"compute-7_gpu_10de_2335_lxc": "4e8e5957-..."}}

A provider that is not in it was never published, and is nobody's. It is only believed of the node
that it names: the uuids are unique, and what stands for nothing matches nothing.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu.core import exception, names
from nova_gpu.core.model import GroupKey
from nova_gpu.host.state import files
from nova_gpu.virt.inventory import provider_tree

LOG = logging.getLogger(__name__)

# Placement is waited for once, and not again for each guest that is resumed.
_PATIENCE_S = 60.0
_PAUSE_S = 2.0


class Providers:
    """:param path: of the file; need not exist yet"""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._kept: tuple[str, Mapping[str, str]] | None = None
        self._until: float | None = None

    def keep(self, nodename: str, uuids: Mapping[GroupKey, str]) -> None:
        """Writes them down where they are others than before. Runs inside every claim."""
        by_name = {names.provider_name(nodename, key): each for key, each in uuids.items()}
        if self._kept == (nodename, by_name) or not (by_name or self._path.exists()):
            return
        try:
            files.write_json(self._path, {"node": nodename, "providers": by_name}, indent=1)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # it would lack what is new
            LOG.warning("After a host boot Placement has to answer before guests start: %s", error)
        self._kept = nodename, by_name

    def of(self, client: Any, nodename: str, keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
        """Those of *keys*, as they were kept, or else as Placement says.

        :param client: Nova's report client
        :raises ProvidersUnknown: where neither tells
        """
        kept = self._load(nodename)
        if kept is None:
            return self._asked(client, nodename, list(keys))
        named = {key: names.provider_name(nodename, key) for key in keys}
        return {key: kept[name] for key, name in named.items() if name in kept}

    def _asked(self, client: Any, nodename: str, keys: list[GroupKey]) -> dict[GroupKey, str]:
        while True:
            try:
                return provider_tree.ask(client, nodename, keys)
            except Exception as error:  # whatever Placement or the way there raise
                if self._until is None:
                    self._until = time.monotonic() + _PATIENCE_S
                    LOG.warning("Placement is waited for, %g s at most: %s", _PATIENCE_S, error)
                if time.monotonic() >= self._until:
                    raise exception.ProvidersUnknown(str(error)) from error
            time.sleep(_PAUSE_S)

    def _load(self, nodename: str) -> dict[str, str] | None:
        """By the provider's name; ``None`` where it is not what was written for this node"""
        try:
            content = files.read_json(self._path)
            if content["node"] != nodename:
                return None
            found = content["providers"].items()
            return {str(name): str(uuid.UUID(each)) for name, each in found}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
