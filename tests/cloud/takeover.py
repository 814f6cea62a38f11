# SPDX-License-Identifier: Apache-2.0
"""A takeover as an operator types it, and what it changes in a cloud's databases.

The patterns of what differs are of lines of :func:`tests.cloud.databases.differences`.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from typing import Any

STOCK, OURS = "libvirt.LibvirtDriver", "gpu.GPULibvirtDriver"
_CONFIGURATION = "/etc/nova/nova.conf"
_PAGE = pathlib.Path(__file__).parents[2] / "doc/source/admin/migrating.rst"
_PROMPT = "root@compute# "
_SPEC = r"api\.request_specs\[.*\]\.spec"
# Once the instances are given back
REMAINS = (
    # Nova itself writes a request spec so when the instance moves (RequestSpec.save): with fields
    # that it left out at first, and without those that count for the first host alone.
    rf"{_SPEC}\.(id|pci_requests\.instance_uuid): \(nothing\) -> .*",
    rf"{_SPEC}\.pci_requests\.requests\.\d\.(is_new: \(nothing\) -> False"
    r"|requester_id: \(nothing\) -> None)",
    rf"{_SPEC}\.(requested_destination: None|requested_resources: (\[\]|None)) -> \(nothing\)",
    # Nova writes the provider when it schedules; it needs none for devices that it counts already.
    r"cell\d\.instance_extra\[.*\]\.pci_requests\.\d\.spec\.0\.rp_uuids: .* -> \(nothing\)",
    # The row of a function was removed and made anew. Nova writes the provider, which it made anew
    # as well, with the row's first write only, and finds it out whenever nova-compute starts.
    r"cell\d\.pci_devices\[.*\]\.uuid: .*",
    r"cell\d\.pci_devices\[.*\]\.extra_info(\.rp_uuid: .* -> \(nothing\)|: \(nothing\) -> \{\})",
    # Placement knows a trait for good. No provider has these.
    r"placement\.traits\[CUSTOM_GPU\w*\]\.\w+: \(nothing\) -> .*",
)
# And while nova-gpu has them
MEANWHILE = (
    rf"{_SPEC}\.(flavor\.extra_specs|pci_requests)\..*",
    rf"{_SPEC}\.pci_requests\.requests: \(nothing\) -> \[\]",
    r"cell\d\.instance_extra\[.*\]\.(flavor\.cur\.extra_specs|pci_requests|resources)[.:].*",
    r"cell\d\.instance_system_metadata\[.*nova_gpu_former_.*\]\..*: \(nothing\) -> .*",
    r"cell\d\.pci_devices\[.*\].* -> \(nothing\)",
    # Of what stays stock Nova's: the request's number among those of its instance
    r"cell\d\.pci_devices\[.*\]\.request_id: '<request \d .*>' -> '<request \d .*>'",
    r"cell\d\.compute_nodes\[.*\]\.(pci_stats|stats\.nova_gpu)\..*",
    # Of providers below a compute node's own, whose names begin with its name
    r"placement\.\w+\[(\w+ )?\w+?_(gpu|pci|0000:)_?.*\]\..*",
)


def commands(title: str) -> tuple[list[str], list[str]]:
    """Return what a section of the page has an operator type: until tomorrow, and from then on."""
    _, _, section = _PAGE.read_text().partition(f"\n{title}\n---")
    block = re.search(r"::\n\n((?:   .*\n)+)", section)
    assert block is not None
    lines = [line.strip().removeprefix(_PROMPT) for line in block[1].splitlines()]
    (tomorrow,) = (number for number, line in enumerate(lines) if line.endswith("# tomorrow"))
    return _split(lines[:tomorrow]), _split(lines[tomorrow:])


def _split(lines: list[str]) -> list[str]:
    texts = (line.partition("#")[0].strip() for line in lines)
    return [command for text in texts for command in text.split(" && ")]


class Typing:
    """Does what is typed on a host of a test; ``drivers`` are the hosts' now."""

    drivers: dict[str, str]

    def stop(self, host: str) -> None:
        """Stop nova-compute."""
        raise NotImplementedError

    def start(self, host: str) -> None:
        """Start nova-compute with the options of the host's driver, and let it mend things."""
        raise NotImplementedError

    def command(self, host: str, *arguments: str) -> tuple[int, str]:
        """Run ``nova-gpu``; return its exit status and its output."""
        raise NotImplementedError

    def guests(self, host: str) -> Any:
        """Return the host's guests, of which none may notice anything."""
        raise NotImplementedError

    def type(self: Any, host: str, commands: Sequence[str]) -> None:
        files = {_CONFIGURATION: self.drivers[host]}
        guests = self.guests(host)
        for command in commands:
            self._do(host, command.split(), files)
            self.assertEqual(guests, self.guests(host), f"{host}: {command}")

    def _do(self: Any, host: str, words: Sequence[str], files: dict[str, str]) -> None:
        match words:
            case ["cp", source, target]:
                files[target] = files.get(source, STOCK)
            case ["vi", name]:
                files[name] = OURS
            case ["systemctl", "stop", "nova-compute"]:
                self.stop(host)
            case ["systemctl", "start", "nova-compute"]:
                self.start(host)
            case ["nova-gpu", *arguments]:
                status, output = self.command(host, *arguments)
                self.assertEqual(0, status, f"{host}: {arguments}: {output}")
            case _:
                self.assertEqual(["pip", "install"], words[:2])  # nova-gpu is there
        self.drivers[host] = files[_CONFIGURATION]
