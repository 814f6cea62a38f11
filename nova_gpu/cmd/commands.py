# SPDX-License-Identifier: Apache-2.0
"""The commands of ``nova-gpu``."""

from __future__ import annotations

import logging
import pathlib
import sys
from typing import Any

from nova_gpu.cmd import (
    cards,
    holders,
    host_check,
    libvirt_connection,
    options,
    quarantine,
    show,
    topology,
)
from nova_gpu.cmd.output import NO_CARDS, Format, print_json
from nova_gpu.conf import CONF
from nova_gpu.virt import libvirt_version
from nova_gpu.virt.inventory import discovery

# What these loggers say, some with a traceback, is in the verdict: it is what was not compared.
_SAID_BY_VERIFY = ("nova.virt.libvirt.host", "oslo.messaging", "oslo_messaging", "oslo_service")


def _list(host: discovery.Discovery, *, as_json: bool) -> int:
    rows = cards.read(host)
    held, unknown = holders.read(host, [card.gpu for card in rows]) if rows else ({}, None)
    described = [cards.described(card, held, unknown) for card in rows]
    if as_json:
        print_json(described)
    else:
        print(cards.table(described, unknown) if rows else NO_CARDS)
        sys.stdout.flush()
        print(f"nova-gpu: {options.files_told()}", file=sys.stderr)
    return 0


def _discovery() -> discovery.Discovery:
    return discovery.Discovery(
        libvirt_version=libvirt_version.LibvirtVersion(libvirt_connection.version)
    )


def run(command: Any, line: list[str]) -> int:
    """Run the command that was given; returns its exit status.

    :param command: ``CONF.command``
    :param line: the program's command line
    :raises GPUError, NovaException, OSError, ValueError: where the host or the options cannot be
        read
    """
    host, as_json = _discovery, getattr(command, "format", None) == Format.JSON
    match command.name, getattr(command, "verb", None):
        case "host", "prepare":
            # Only now, as the next ones: no other command has use for what it imports.
            from nova_gpu.cmd import host_prepare

            root = pathlib.Path(command.root)
            if command.undo:
                return host_prepare.undo(root)
            return host_prepare.main(host(), root, apply=command.apply)
        case "host", _:
            return host_check.main(host(), pathlib.Path("/"), as_json=as_json)
        case "quarantine", _:
            return quarantine.main(host().quarantine, command)
        case "show", _:
            return show.main(host(), command.address, as_json=as_json)
        case "topology", _:
            return topology.main(host(), as_json=as_json)
        case "exporter", _:
            from nova_gpu.cmd import exporter

            return exporter.main(host(), command.listen, once=command.once)
        case "verify", _:
            for name in () if CONF.debug else _SAID_BY_VERIFY:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            from nova_gpu.cmd import verify

            verify.configure(line)
            return verify.main(host(), as_json=as_json, mend=command.repair)
    return _list(host(), as_json=as_json)
