# SPDX-License-Identifier: Apache-2.0
"""All that a cloud keeps: its databases, libvirt's domains and devices, and its hosts' files."""

from __future__ import annotations

import itertools
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.cloud import databases

# Files of a device that the kernel lets root write only
_NEVER_READ = {"reset"}
# What the kernel shows of a driver_override to which an empty line was written
_NO_OVERRIDE = r"b'(null)\n'"
_STATE = (fakelibvirt.VIR_DOMAIN_XML_INACTIVE, 0)


def dump(cloud: Any) -> databases.Dump:
    """Return all that *cloud*, a test of :mod:`tests.functional.base`, keeps."""
    hosts = itertools.chain(
        *(_of_libvirt(name, cloud.connection(name)) for name in cloud.computes),
        *(_of_files(name, host.root) for name, host in cloud.hosts.items()),
    )
    return databases.dump(cloud, hosts)


def _of_libvirt(host: str, connection: Any) -> Iterator[tuple[str, str]]:
    for domain in connection.listAllDomains(0):
        place = f"{host}.domain[{domain.UUIDString()}]"
        yield f"{place}.state", repr(domain.info()[0])
        yield f"{place}.id", repr(domain.ID())
        for flags in _STATE:
            yield f"{place}.xml({flags})", domain.XMLDesc(flags)
    for name in connection.listDevices("mdev", 0):
        device = connection.nodeDeviceLookupByName(name)
        yield f"{host}.mdev[{name}].xml", device.XMLDesc(0)
        yield f"{host}.mdev[{name}].persistent", repr(device.isPersistent())


def _of_files(host: str, root: pathlib.Path) -> Iterator[tuple[str, str]]:
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = pathlib.Path(folder, name)
            place = f"{host}:/{path.relative_to(root)}"
            status = path.lstat()
            yield f"{place} (mode)", stat.filemode(status.st_mode)
            if path.is_symlink():
                yield place, f"-> {os.readlink(path)}"
            elif stat.S_ISREG(status.st_mode) and name not in _NEVER_READ:
                text = repr(path.read_bytes())
                yield place, _NO_OVERRIDE if (name, text) == ("driver_override", r"b'\n'") else text
