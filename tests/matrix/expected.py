# SPDX-License-Identifier: Apache-2.0
"""Failures that are known, by name: what is wrong with the product, or with Nova."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence

import yaml

_FILE = pathlib.Path(__file__).with_name("expected.yaml")


@dataclasses.dataclass(frozen=True)
class Expected:
    """``walk`` and ``difference`` are patterns: of a walk's name, and of a difference in words."""

    walk: re.Pattern[str]
    difference: re.Pattern[str]
    why: str

    def covers(self, walk: str, difference: str) -> bool:
        return bool(self.walk.search(walk) and self.difference.search(difference))


def load(path: pathlib.Path = _FILE) -> Sequence[Expected]:
    return tuple(
        Expected(
            re.compile(each.get("walk", "")),
            re.compile(each.get("difference", ""), re.DOTALL),
            each["why"],
        )
        for each in yaml.safe_load(path.read_text()) or ()
    )
