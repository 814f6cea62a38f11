# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu flavor check``: shows what flavors request, and the mistakes in them."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import validation
from nova_gpu.core.flavor.request import FlavorRequest
from osc_gpu import base_command, flavors, hosts, query, rest
from osc_gpu.base_command import Lines
from osc_gpu.resource_request import Size

_COLUMNS = ("Flavor", "Asks For", "Counted by Quota", "Mistakes")
_UNREADABLE = "unreadable"
# What validation judges, too
_COUNTED = frozenset(f"resources:{name}" for name in names.RESOURCE_CLASSES)
# Entry points of functions that return what is wrong with a property and its value
_CHECKS = "osc_gpu.extra_spec_checks"


class CheckFlavor(base_command.Lister):
    """Show what flavors ask for, and every mistake in them; the exit status is 1 if there is one.

    The API refuses a wrong property only from microversion 2.86 on, and never checks flavors that
    exist: an instance of a flavor with mistakes fails.
    """

    _found_mistakes = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "flavors",
            metavar="<flavor>",
            nargs="*",
            help="Flavor (name or ID) (default: all that request GPUs or have mistakes)",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        rows = []
        connection = rest.CachedConnection(self.connection(parsed_args))
        known_traits = functools.cache(lambda: query.known_traits(connection))
        model_classes = functools.cache(lambda: query.model_classes(connection))
        for flavor in flavors.read(connection, parsed_args.flavors):
            request = flavors.request_of(flavor)
            mistakes = [
                *validation.mistakes(request),
                *_unknown(request, known_traits),
                *_refused_by_nova(request.extra_specs),
            ]
            asks_for, counted = _described(request, model_classes)
            if parsed_args.flavors or mistakes or asks_for:
                rows.append((flavor.name, asks_for or flavors.NOTHING, counted, Lines(mistakes)))
            self._found_mistakes |= bool(mistakes)
            if asks_for and not mistakes and (why := _why_never(connection, flavor, request)):
                self.say(f"{flavor.name}: no instance can start now: {why}")
        # Nova lists flavors by their ids, which are random.
        return _COLUMNS, rows if parsed_args.flavors else sorted(rows, key=lambda row: row[0])

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or int(self._found_mistakes)


def _why_never(connection: Any, flavor: Any, request: FlavorRequest) -> str:
    with contextlib.suppress(rest.NotPermitted):  # what hosts have is for administrators
        size = Size.of(flavor)
        never = hosts.why_never(connection, size, request)
        return never or hosts.too_few_nodes(connection, size, request)
    return ""


def _described(
    request: FlavorRequest, model_classes: Callable[[], Collection[str]]
) -> tuple[str, str]:
    """Return two cells: what the flavor requests, and whether Nova's API counts it for quota.

    Both are empty if it requests no GPUs.
    """
    try:
        if not request.requests:
            return "", ""
    except exception.InvalidExtraSpec:
        return _UNREADABLE, ""
    return flavors.in_words(request), _counted(request, model_classes)


def _counted(request: FlavorRequest, model_classes: Callable[[], Collection[str]]) -> str:
    uncounted = request.uncounted(by_model=True).keys()
    if uncounted & {*names.RESOURCE_CLASSES}:
        return "no"
    with contextlib.suppress(rest.NotPermitted):  # the user may not read what hosts have
        if uncounted and uncounted & {*model_classes()}:
            return "not by model"
    return "yes"


def _unknown(request: FlavorRequest, known_traits: Callable[[], Collection[str]]) -> Iterator[str]:
    """Yield names that no host can have, as far as the user may read what hosts have."""
    specs = request.extra_specs if request.asks_for_gpus or request.asks_for_vgpus else {}
    # A value that cannot be parsed is among the flavor's other mistakes.
    with contextlib.suppress(exception.InvalidExtraSpec, rest.NotPermitted):
        for word, name, reason in flavors.unknown_names(specs, known_traits):
            yield f"{word.name}={specs[word.name]!r}: {name} is {reason}"


def _refused_by_nova(specs: Mapping[str, str]) -> Iterator[str]:
    """Yield why nova-api would refuse other properties, if Nova is installed next to the client."""
    for key, value in specs.items():
        # Nova's validators take longer to import than all else of the command.
        judge = None if validation.is_own(key) or key in _COUNTED else _judge()
        if judge and (reason := judge(key, value)):
            yield f"{key}={value!r}: {reason}"


@functools.cache
def _judge() -> Callable[[str, str], str | None] | None:
    for point in metadata.entry_points(group=_CHECKS):
        with contextlib.suppress(ModuleNotFoundError):
            judge: Callable[[str, str], str | None] = point.load()
            return judge
    return None
