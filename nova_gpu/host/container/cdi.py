# SPDX-License-Identifier: Apache-2.0
"""Container Device Interface (CDI) specifications: what a container needs to use a GPU.

The files are read at every start of a guest, because the vendor's tools rewrite them when the
driver changes. Hooks are never executed: :mod:`nova_gpu.host.container.libraries` does the work of
create-symlinks and update-ldcache on the host. A guest with user namespaces does not need the other
hooks, or root in the guest can do their work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from oslo_log import log as logging

from nova_gpu.core import container, exception, json_text
from nova_gpu.host.container import cdi_schema
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

_SUFFIXES = (".json", ".yaml")
# An alias repeats its target. The expanded text of a few hundred of them would not fit into any
# memory, and an error may quote it.
_UNFOLDED = 4 * files.LARGEST


@dataclasses.dataclass(frozen=True, slots=True)
class CdiNode:
    """A device node of a specification: at ``host_path`` on the host, at ``path`` in the guest.

    ``type`` is that of mknod(1), b, c, u or p, and empty if the specification lacks it.
    """

    path: str
    host_path: str
    type: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Edits:
    """The device nodes, mounts, environment and links that a specification adds to a container.

    ``links`` are pairs: the target of a symbolic link, and the path of the link in the guest.
    """

    nodes: tuple[CdiNode, ...] = ()
    mounts: tuple[container.Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            nodes=self.nodes + other.nodes,
            mounts=self.mounts + other.mounts,
            env=self.env + other.env,
            links=self.links + other.links,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CdiDevice:
    """A device that the specification ``file`` describes, by its qualified name.

    ``name`` is such as ``nvidia.com/gpu=0``. ``edits`` are those for all devices of the file,
    followed by the device's own.
    """

    name: str
    file: pathlib.Path
    edits: Edits


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """A specification, or a folder of them, that is not used, with the reason.

    ``text`` is the content of the file, ``None`` if it cannot be read.
    """

    path: pathlib.Path
    reason: str
    text: str | None = None

    def may_describe(self, nodes: Iterable[str]) -> bool:
        """Return whether the file contains the path of one of *nodes*, or cannot be read."""
        return self.text is None or any(
            re.search(rf"{re.escape(node)}(?![\w-])", self.text) for node in nodes
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Specifications:
    """The devices of a host's specifications by qualified name, and the ignored files."""

    devices: Mapping[str, CdiDevice]
    ignored: tuple[Ignored, ...] = ()


def find(folders: Iterable[pathlib.Path], owner_uid: int = 0) -> Specifications:
    """Read the specifications in *folders*; a device in a later folder replaces an earlier one.

    A file that is invalid, or that users other than *owner_uid* could have written, is logged and
    ignored. A device that two files of one folder describe is ignored.
    """
    devices: dict[str, CdiDevice] = {}
    ignored: list[Ignored] = []
    for folder in folders:
        here: dict[str, CdiDevice] = {}
        conflicts: set[str] = set()
        for device in _folder(folder, owner_uid):
            if isinstance(device, Ignored):
                ignored.append(device)
                continue
            other = here.setdefault(device.name, device)
            if other is not device:
                conflicts.add(device.name)
                _warn(
                    f"CDI device {device.name} is ignored: {other.file} and {device.file} both "
                    "describe it; remove one of them"
                )
        devices |= here
        for name in conflicts:
            del devices[name]
    return Specifications(devices, tuple(ignored))


@functools.lru_cache(maxsize=256)
def _warn(text: str) -> None:
    """Log the warning *text* once, because the files are read at every start of a guest."""
    LOG.warning("%s", text)


def describing(nodes: Iterable[str], devices: Mapping[str, CdiDevice]) -> CdiDevice | None:
    """Return the one of *devices* that has one of *nodes*, ``None`` if none has.

    Of several the one with the fewest nodes is returned, because a specification may also have a
    device for all cards.
    """
    wanted = frozenset(nodes)
    matches = (
        device
        for device in devices.values()
        if any(wanted & {node.path, node.host_path} for node in device.edits.nodes)
    )
    return min(matches, key=lambda device: (len(device.edits.nodes), device.name), default=None)


def load(path: pathlib.Path, owner_uid: int = 0) -> tuple[CdiDevice, ...]:
    """Return the devices that the specification in the file at *path* describes.

    :raises InvalidCDISpec: if the file cannot be read, is not trusted, or is invalid
    """
    try:
        document, unknown = cdi_schema.known(_document(path, _read(path, owner_uid)))
        reason = cdi_schema.fault(document)
    except OSError as error:
        reason = str(error)
    except RecursionError:
        reason = "it cannot be parsed: it is nested too deep"
    # yaml's constructors raise any error for a value that does not have the type it claims.
    except (ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = f"it cannot be parsed: {error}"
    if reason is not None:
        raise exception.InvalidCDISpec(str(path), reason)
    if unknown:
        _warn(
            f"CDI file {path} has parts that nova-gpu does not know and ignores: "
            f"{', '.join(unknown[:8])}; install a newer nova-gpu if guests lack anything of it"
        )
    assert isinstance(document, dict)
    common = _edits(document.get("containerEdits", {}))
    return tuple(
        CdiDevice(
            name=f"{document['kind']}={device['name']}",
            file=path,
            edits=common + _edits(device["containerEdits"]),
        )
        for device in document["devices"]
    )


# Nova-compute reads them in each period, and most hosts have one or two.
@functools.lru_cache(maxsize=16)
def _loaded(path: pathlib.Path, owner_uid: int, _identity: object) -> tuple[CdiDevice, ...]:
    return load(path, owner_uid)


def _identity(path: pathlib.Path) -> object:
    """Return what differs when the file was written anew or has another owner or mode."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        times = status.st_mtime_ns, status.st_ctime_ns
        return status.st_dev, status.st_ino, status.st_size, status.st_uid, status.st_mode, times
    return None


def _folder(folder: pathlib.Path, owner_uid: int) -> Iterator[CdiDevice | Ignored]:
    try:
        paths = [folder / name for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIXES)]
        reason = files.distrust(os.stat(folder), owner_uid) if paths else None
    except FileNotFoundError:
        return
    except OSError as error:
        paths, reason = [], str(error)
    if reason is not None:
        _warn(f"CDI folder {folder} is ignored: {reason}")
        yield Ignored(folder, reason)
        return
    for path in paths:
        try:
            yield from _loaded(path, owner_uid, _identity(path))
        except exception.InvalidCDISpec as error:
            _warn(str(error))
            text = None
            with contextlib.suppress(OSError, ValueError):
                text = files.read(path)
            yield Ignored(path, error.reason, text)


def _edits(document: Mapping[str, Any]) -> Edits:
    """Return the object ``containerEdits`` of a specification as far as libvirt can express it.

    libvirt cannot express additionalGids, which :func:`nova_gpu.host.nodes.open_mode` makes
    needless, intelRdt, netDevices and the options of a mount: every mount is a read-only bind.
    """
    env = (text.partition("=") for text in document.get("env", ()))
    links = (_links(hook.get("args", ())) for hook in document.get("hooks", ()))
    return Edits(
        nodes=tuple(
            CdiNode(
                path=_plain(node["path"]),
                host_path=_plain(node.get("hostPath") or node["path"]),
                type=node.get("type", ""),
            )
            for node in document.get("deviceNodes", ())
        ),
        mounts=tuple(
            container.Mount(mount["hostPath"], _plain(mount["containerPath"]))
            for mount in document.get("mounts", ())
        ),
        env=tuple((key, value) for key, _, value in env),
        links=functools.reduce(lambda some, more: some + more, links, ()),
    )


def _plain(path: str) -> str:
    # Two leading slashes, which POSIX permits and normpath keeps, become one.
    return os.path.normpath("/" + path.lstrip("/"))


def _links(arguments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of target and link in a hook's *arguments*, none for another hook.

    They are as ``nvidia-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib/libcuda.so``.
    """
    if "create-symlinks" not in arguments:
        return ()
    values = [
        argument.removeprefix("--link=") if argument.startswith("--link=") else following
        for argument, following in zip(arguments, (*arguments[1:], ""), strict=True)
        if argument == "--link" or argument.startswith("--link=")
    ]
    parts = (value.partition("::") for value in values)
    return tuple((content, link) for content, separator, link in parts if separator)


def _read(path: pathlib.Path, owner_uid: int) -> str:
    with files.opened(path) as fd:
        reason = files.distrust(os.fstat(fd), owner_uid)
        if reason is not None:
            raise exception.InvalidCDISpec(str(path), reason)
        return files.text(fd)


def _document(path: pathlib.Path, text: str) -> Any:
    if path.suffix == ".json":
        return json_text.parse(text, _without_repetition)
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _check(node, {})
    return loader.construct_document(node)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return result


def _check(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the length of the text to which the YAML node *node* expands with its aliases.

    Keys are checked, too, because YAML's own loader keeps the last of two equal keys.

    :param sizes: the lengths of earlier nodes, to which an alias may point; updated
    :raises ValueError: if the text is too long or endless, or a key occurs twice
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("one of its YAML aliases contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0  # not known yet
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _without_repetition([(str(key.value), None) for key, _ in node.value])
        inner = [item for pair in node.value for item in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    size = 1 + sum(_check(item, sizes) for item in inner)
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value)
    if size > _UNFOLDED:
        raise ValueError(f"with its YAML aliases it has more than {_UNFOLDED} characters")
    sizes[id(node)] = size
    return size
