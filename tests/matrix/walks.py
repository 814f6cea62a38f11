# SPDX-License-Identifier: Apache-2.0
"""What is tried, as values with names by which each can be tried again."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Setup:
    """A cloud and an instance in it. ``is_member``: whether no admin does what an admin would."""

    kind: str
    flavor: str
    image: str = "any"
    conditions: tuple[str, ...] = ()
    is_member: bool = False

    def __str__(self) -> str:
        return "+".join(
            [
                f"{self.kind}.{self.flavor}.{self.image}",
                *self.conditions,
                *(["member"] if self.is_member else []),
            ]
        )

    @classmethod
    def parse(cls, text: str) -> Setup:
        names, *conditions = text.split("+")
        kind, flavor, image = names.split(".")
        own = tuple(name for name in conditions if name != "member")
        return cls(kind, flavor, image, own, "member" in conditions)


@dataclasses.dataclass(frozen=True)
class Outage:
    """What becomes of one call to the outside. ``way``: one of those of :mod:`outages`;
    ``number``: which call, from 1."""

    way: str
    number: int

    def __str__(self) -> str:
        return f"@{self.way}{self.number or ''}"


@dataclasses.dataclass(frozen=True)
class Step:
    operation: str
    outage: Outage | None = None

    def __str__(self) -> str:
        return f"{self.operation}{self.outage or ''}"

    @classmethod
    def parse(cls, text: str) -> Step:
        operation, _, outage = text.partition("@")
        match = re.fullmatch(r"([a-z]+)(\d*)", outage)
        return cls(operation, Outage(match[1], int(match[2] or 0)) if match else None)


@dataclasses.dataclass(frozen=True)
class Walk:
    setup: Setup
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "/".join([str(self.setup), *map(str, self.steps)])

    @classmethod
    def parse(cls, text: str) -> Walk:
        setup, *steps = text.split("/")
        return cls(Setup.parse(setup), tuple(map(Step.parse, steps)))
