# SPDX-License-Identifier: Apache-2.0
"""What an instance had by stock Nova, kept with it in Nova's database for the way back.

It is in the instance's ``system_metadata``, which no user can write and which Nova keeps through
moves, resizes, rebuilds and shelving.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from nova_gpu.core import exception, json_text, metadata_text, names
from nova_gpu.core.model import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class AliasRequest:
    """What an alias has asked Nova for: one of ``specs``, as near as ``numa_policy`` says."""

    specs: tuple[Mapping[str, Any], ...]
    numa_policy: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Former:
    """An instance's words, and its requests and functions by alias, before it was taken over.

    ``flavor`` is the name of the flavor. ``set`` are the properties that the takeover has given it,
    ``specs`` those that it had instead. ``requests`` and ``functions`` say by which alias it had
    what; a shelved instance had no functions.
    """

    flavor: str
    set: Mapping[str, str]
    specs: Mapping[str, str]
    requests: Mapping[str, AliasRequest]
    functions: Mapping[PciAddress, str]

    def is_before(self, flavor: str, extra_specs: Mapping[str, str]) -> bool:
        """Return whether this flavor is as the takeover has left it, as after no resize."""
        return (
            flavor == self.flavor
            and self.set.items() <= extra_specs.items()
            and not extra_specs.keys() & (self.specs.keys() - self.set.keys())
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many of each resource class ``specs`` ask for, in all request groups."""
        counts: collections.Counter[str] = collections.Counter()
        for name, value in self.specs.items():
            word, _, resource_class = name.partition(":")
            if word.startswith("resources") and value.isdecimal():
                counts[resource_class] += int(value)
        return dict(counts)

    def to_metadata(self) -> dict[str, str]:
        """Return the items for the instance's ``system_metadata``."""
        values = {
            "flavor": self.flavor,
            "set": dict(self.set),
            "specs": dict(self.specs),
            "requests": {
                alias: [[dict(spec) for spec in request.specs], request.numa_policy]
                for alias, request in self.requests.items()
            },
            "functions": {str(function): alias for function, alias in self.functions.items()},
        }
        # The requests keep their order, in which Nova gives devices.
        text = json.dumps(values, separators=(",", ":"))
        return metadata_text.split(names.FORMER, text)


def of_metadata(metadata: Mapping[str, str]) -> Former | None:
    """Return what :meth:`Former.to_metadata` has encoded, ``None`` if nothing is kept."""
    text = metadata_text.joined(names.FORMER, metadata)
    with contextlib.suppress(ValueError, TypeError, KeyError, exception.InvalidPciAddress):
        values = json_text.parse(text)
        return Former(
            values["flavor"],
            dict(values["set"]),
            dict(values["specs"]),
            {
                alias: AliasRequest(tuple(map(dict, specs)), policy)
                for alias, (specs, policy) in values["requests"].items()
            },
            {PciAddress.parse(text): alias for text, alias in values["functions"].items()},
        )
    return None
