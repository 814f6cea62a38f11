# SPDX-License-Identifier: Apache-2.0
"""How cards lie to each other, read without the code under test: from where the kernel has them,
from what lspci draws, and from the matrix that nova-gpu prints."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The path in the tree of PCI Express, and the NUMA node, negative where there is none
Place = tuple[str, int]
# Row by row, in the order of the cards' addresses
Relations = list[list[str]]

_CARD = re.compile(r"^ *GPU(\d+)  (\S+)  ", re.MULTILINE)
_ROW = re.compile(r"^ *GPU\d+((?: +(?:X|PIX|PHB|NODE|SYS|\?))+)$", re.MULTILINE)
# What lspci writes behind a function, and the buses and functions before that
_TEXT = re.compile(r"(?<=\.[0-7])  .*")
_PART = re.compile(r"\[(?P<domain>\w{4}:)?(?P<bus>\w\w)(?:-\w\w)?\]|(?P<function>\w\w\.\d)")
# A root, a port, and the upstream port of a switch
_SWITCH = 3


def between(places: Iterable[Place]) -> Relations:
    known = list(places)
    return [["X" if one is other else _word(one, other) for other in known] for one in known]


def _word(one: Place, other: Place) -> str:
    (path, node), (to, at) = one, other
    shared = 0
    for mine, its in zip(path.split("/"), to.split("/"), strict=False):
        if mine != its:
            break
        shared += 1
    if shared:
        return "PIX" if shared >= _SWITCH else "PHB"
    if min(node, at) < 0:
        return "?"
    return "NODE" if node == at else "SYS"


def shown(topology: str, addresses: Iterable[str]) -> Relations:
    """Of these cards among those that ``nova-gpu topology`` prints, who has no matrix of one."""
    numbers = {address: int(number) for number, address in _CARD.findall(topology)}
    rows = [row.split() for row in _ROW.findall(topology)] or [["X"]]
    chosen = [numbers[address] for address in addresses]
    return [[rows[one][other] for other in chosen] for one in chosen]


def drawn(lspci: str) -> dict[str, str]:
    """The path of each function by its address, of what ``lspci -tv`` prints: what is further to
    the right hangs on what is to the left of it."""
    found: dict[str, str] = {}
    above: list[tuple[int, str, str]] = []
    for line in lspci.splitlines():
        for part in _PART.finditer(_TEXT.sub("", line)):
            while above and above[-1][0] >= part.start():
                above.pop()
            _, bus, path = above[-1] if above else (0, "", "")
            if part["function"]:
                address = f"0000:{bus}:{part['function']}"
                path = found[address] = f"{path}/{address}"
            else:
                bus = part["bus"]
                path = f"pci{part['domain']}{bus}" if part["domain"] else path
            above.append((part.start(), bus, path))
    return found
