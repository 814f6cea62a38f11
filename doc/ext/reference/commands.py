# SPDX-License-Identifier: Apache-2.0
"""The command lines of nova-gpu's own programs, read from their parsers, as reStructuredText."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from nova_gpu.cmd import arguments, status


@dataclasses.dataclass(frozen=True)
class Command:
    """``line``: without the program and the options. ``help``: reStructuredText"""

    line: str
    help: str
    parser: argparse.ArgumentParser

    def options(self, ignored: Collection[str] = ()) -> Iterator[str]:
        """Its usage, and its options and arguments without those *ignored*"""
        usage = self.parser.format_usage().removeprefix("usage: ")
        yield from (f".. program:: {self.parser.prog}", "", ".. code-block:: none", "")
        yield from (f"   {line}" for line in usage.splitlines())
        yield ""
        for each in self.parser._actions:
            if each.help and not set(each.option_strings) & set(ignored):
                form = "" if each.nargs == 0 else f" {_form(each)}"
                named = ", ".join(f"{option}{form}" for option in each.option_strings)
                text = each.help % {**vars(each), "prog": self.parser.prog}
                yield from (f".. option:: {named or _form(each)}", "", f"   {plain(text)}", "")


def _form(action: argparse.Action) -> str:
    if action.choices and not action.metavar:
        return f"{{{','.join(map(str, action.choices))}}}"
    return str(action.metavar or action.dest.upper())


class _Parser(argparse.ArgumentParser):
    """One whose commands have no ``--help`` of their own, which nobody has to look up"""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "add_help": False})


def commands(program: str) -> Iterator[Command]:
    """:raises KeyError: where there is no such program"""
    parser = _Parser(prog=program)
    PROGRAMS[program](parser.add_subparsers())
    yield from _below(parser, "", "")


def _below(parser: argparse.ArgumentParser, line: str, said: str) -> Iterator[Command]:
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for each in nested:
        helps = {choice.dest: choice.help for choice in each._choices_actions}
        for name, below in each.choices.items():
            yield from _below(below, f"{line} {name}", helps.get(name) or "")
    if not nested:
        names = [each.metavar or each.dest for each in parser._actions if not each.option_strings]
        yield Command(" ".join([line.strip(), *map(str, names)]), plain(said), parser)


PROGRAMS: dict[str, Callable[[Any], None]] = {
    "nova-gpu": arguments.add_commands,
    "nova-gpu-status": status.add_commands,
}


def plain(text: str) -> str:
    """Text that means nothing else in reStructuredText, and whose options keep their hyphens."""
    escaped = re.sub(r"([\\*`|_])", r"\\\1", text)
    return re.sub(r"(--[a-z-]+)", r"``\1``", escaped)
