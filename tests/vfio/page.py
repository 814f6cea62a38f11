# SPDX-License-Identifier: Apache-2.0
"""What an operator types, as :doc:`/admin/migrating` shows it."""

from __future__ import annotations

import pathlib
import re

CONFIGURATION = "/etc/nova/nova.conf"
_PAGE = pathlib.Path(__file__).parents[2] / "doc/source/admin/migrating.rst"
_PROMPT = "root@compute# "


def commands(title: str) -> tuple[list[str], list[str]]:
    """Return the commands of a section of the page: until tomorrow, and from then on."""
    _, _, section = _PAGE.read_text().partition(f"\n{title}\n---")
    block = re.search(r"::\n\n((?:   .*\n)+)", section)
    assert block is not None
    lines = [line.strip().removeprefix(_PROMPT) for line in block[1].splitlines()]
    (tomorrow,) = (number for number, line in enumerate(lines) if line.endswith("# tomorrow"))
    tonight, then = lines[:tomorrow], lines[tomorrow:]
    return _split(tonight), _split(then)


def _split(lines: list[str]) -> list[str]:
    texts = (line.partition("#")[0].strip() for line in lines)
    return [command for text in texts for command in text.split(" && ")]
