# SPDX-License-Identifier: Apache-2.0
"""What is tried, as values with names by which each can be tried again."""

from __future__ import annotations

import dataclasses


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
    """What becomes of one call to the outside.

    ``way``: one of those of :mod:`outages`. ``call``: its name, and which of those of that name
    it is, as ``PUT-allocations.2``; several are joined by ``+``.
    """

    way: str
    call: str = ""

    def __str__(self) -> str:
        return f"@{self.way}:{self.call}" if self.call else f"@{self.way}"


@dataclasses.dataclass(frozen=True)
class Step:
    """An operation on the instance of that *slot*, of which the first is the walk's own."""

    operation: str
    outage: Outage | None = None
    slot: int = 0

    def __str__(self) -> str:
        return f"{f'{self.slot}:' if self.slot else ''}{self.operation}{self.outage or ''}"

    @classmethod
    def parse(cls, text: str) -> Step:
        slot, _, operation = text.partition(":") if text[0].isdigit() else ("0", "", text)
        operation, _, outage = operation.partition("@")
        way, _, call = outage.partition(":")
        return cls(operation, Outage(way, call) if way else None, int(slot))


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
