# SPDX-License-Identifier: Apache-2.0
"""What a container gets for its GPUs.

The device nodes a whole card takes are always given: a CDI specification may have been written
before nvidia-uvm was there. A specification that describes the card adds further nodes, the
driver's files and environment. It is the operator's, and yet by it no guest is given what leads to
another's card or what others than root could have put there.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from oslo_log import log as logging

from nova_gpu.core import contents as values
from nova_gpu.core import exception, model
from nova_gpu.host import cdi, libraries, mounts, nodes, trust
from nova_gpu.host import roots as host_roots

LOG = logging.getLogger(__name__)

_LIBRARY_PATH = "LD_LIBRARY_PATH"

# One card's each: given if the card is the guest's.
_OF_ONE_CARD = re.compile(r"/dev/(nvidia\d+|nvidia-caps/.+|dri/.+)")
# These reach all cards of the host, or other hosts: never given.
_OF_THE_HOST = re.compile(r"/dev/nvidia-(caps-imex-channels/.+|nvswitch.*|nvlink|vgpu.*)")


def contents(
    gpus: Sequence[model.GPU],
    roots: host_roots.Roots,
    library_root: pathlib.Path,
    owner_uid: int = 0,
) -> values.GuestContents:
    """Nodes, mounts and environment for one container that is to have *gpus*.

    The folders it has to make are made below *library_root*. *owner_uid* is who must own the CDI
    specifications and the files they name: root.

    :raises DeviceNodeMissing: a card without nodes, or one of its nodes is not there
    :raises DeviceUnavailable: a file that the card's CDI specification names is not there
    :raises GuestFilesUnavailable: the driver's files cannot be gathered below *library_root*
    """
    given = set(_built_in_nodes(gpus, roots))
    cards = frozenset(node for gpu in gpus for node in nodes.card_nodes(gpu, roots))
    wanted: dict[str, values.Mount] = {}
    env: dict[str, str] = {}
    links: dict[tuple[str, str], None] = {}
    for gpu, device in _described(gpus, cards, roots, owner_uid):
        given |= {node.path for node in _kept(device, cards) if nodes.is_there(node.path, roots)}
        wanted |= {mount.target: mount for mount in _mounts(gpu, device, owner_uid)}
        env |= dict(device.edits.env)
        links |= dict.fromkeys(device.edits.links)
    placed = mounts.place(wanted.values(), links, library_root)
    if any(mount.target == libraries.TARGET for mount in placed):
        env[_LIBRARY_PATH] = ":".join(filter(None, (env.get(_LIBRARY_PATH), libraries.TARGET)))
    return values.GuestContents(
        nodes=tuple(sorted(given)),
        mounts=tuple(sorted(placed, key=lambda mount: mount.target)),
        env=tuple(sorted(env.items())),
    )


def _built_in_nodes(gpus: Iterable[model.GPU], roots: host_roots.Roots) -> Iterator[str]:
    for gpu in gpus:
        own = nodes.own_nodes(gpu, roots)
        if not own:
            raise exception.DeviceNodeMissing(
                str(gpu.address),
                "of its own",
                f"it must be bound to its vendor's driver (now: {gpu.driver or 'none'})",
            )
        for node in (*own, *nodes.shared_nodes(gpu, roots)):
            if nodes.is_there(node, roots):
                yield node
            elif nodes.is_required(node):
                raise exception.DeviceNodeMissing(
                    str(gpu.address),
                    node,
                    "restart nova-compute, which has it made, or make it with the vendor's tool "
                    "(nvidia-modprobe, nvidia-smi)",
                )


def _described(
    gpus: Sequence[model.GPU],
    cards: frozenset[str],
    roots: host_roots.Roots,
    owner_uid: int,
) -> Iterator[tuple[model.GPU, cdi.Device]]:
    """The cards that a usable CDI device describes, with it"""
    devices: Mapping[str, cdi.Device] = cdi.devices(roots.cdi_spec_dirs, owner_uid) if gpus else {}
    for gpu in gpus:
        own = filter(nodes.is_required, nodes.own_nodes(gpu, roots))
        device = cdi.describing(own, devices)
        if device is None:
            continue
        unfit = [node for node in _kept(device, cards) if not _is_expressible(node)]
        if not unfit:
            yield gpu, device
            continue
        LOG.warning(
            "CDI device %(name)s of %(file)s is not used for GPU %(address)s, whose guests get its "
            "nodes only: libvirt gives character devices, at their own path below /dev, and not "
            "%(host_path)s at %(path)s",
            {
                "name": device.name,
                "file": device.file,
                "address": gpu.address,
                "host_path": unfit[0].host_path,
                "path": unfit[0].path,
            },
        )


def _kept(device: cdi.Device, cards: frozenset[str]) -> list[cdi.Node]:
    """The device's nodes without those that lead elsewhere than to *cards*"""
    return [
        node
        for node in device.edits.nodes
        if all(
            path in cards or not (_OF_ONE_CARD.fullmatch(path) or _OF_THE_HOST.fullmatch(path))
            for path in (node.path, node.host_path)
        )
    ]


def _is_expressible(node: cdi.Node) -> bool:
    return (
        node.path == node.host_path
        and node.path.startswith("/dev/")
        and node.type not in ("b", "p")
    )


def _mounts(gpu: model.GPU, device: cdi.Device, owner_uid: int) -> Iterator[values.Mount]:
    """The device's mounts that are not refused, each from where its source really is"""
    for mount in device.edits.mounts:
        try:
            status = os.stat(mount.source)
        except OSError as error:
            raise exception.DeviceUnavailable(
                str(gpu.address),
                f"{device.file} gives it {mount.source}: {error.strerror}",
                "have the vendor's tool write that file anew, as after every driver upgrade",
            ) from error
        reason = trust.distrust(status, owner_uid) or mounts.refusal(mount, status)
        if reason is None:
            yield values.Mount(os.path.realpath(mount.source), mount.target)
        else:
            LOG.warning(
                "Guests do not get %(source)s at %(target)s, as %(file)s has it: %(reason)s",
                {
                    "source": mount.source,
                    "target": mount.target,
                    "file": device.file,
                    "reason": reason,
                },
            )
