# SPDX-License-Identifier: Apache-2.0
"""The declarations of traits with which extensions close compute nodes to instances with GPUs.

A query for GPUs forbids such a trait on the root provider. So it takes effect with the next query,
and instances without GPUs still start there.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Mapping

from nova_gpu.core import extensions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClosingTrait:
    """A trait of compute nodes that get no new instance with GPUs, or not every one.

    ``name`` is the trait, or the beginning of the traits' names if ``is_in_force`` is set: that
    returns whether the trait of a name closes its hosts at a time in UTC. ``concerns`` returns
    whether they are closed to a flavor's instances, by its extra specs; unset: to all.

    The others are texts for users: what such ``hosts`` do, and the ``host`` that was asked for; why
    an instance does not start ``at_start``; and what a list says of a host with that trait.
    """

    name: str
    hosts: str
    host: str
    at_start: str
    in_list: Callable[[str], str]
    concerns: Callable[[Mapping[str, str]], bool] | None = None
    is_in_force: Callable[[str, datetime.datetime], bool] | None = None

    def closes(self, extra_specs: Mapping[str, str]) -> bool:
        """Return whether hosts with the trait are closed to the instances of a flavor."""
        return self.concerns is None or self.concerns(extra_specs)

    def in_force(self, traits: Iterable[str], now: datetime.datetime) -> frozenset[str]:
        """Return those of *traits* that close their hosts at the time *now*."""
        if self.is_in_force is None:
            return frozenset(traits) & {self.name}
        return frozenset(trait for trait in traits if self.is_in_force(trait, now))


@functools.cache
def declared() -> tuple[ClosingTrait, ...]:
    """Return the traits of all extensions; those that close hosts for longest come first."""
    return tuple(trait for traits in extensions.load("nova_gpu.closing_traits") for trait in traits)
