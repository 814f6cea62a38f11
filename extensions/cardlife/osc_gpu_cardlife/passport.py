# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu passport SERIAL FILE``: shows what hosts have seen of a card."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import json_text
from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.core.passport import Passport, Record
from osc_gpu import base_command

_COLUMNS = ("Time", "Host", "Address", "Event", "Text")
_STDIN = "-"
_FILES = (
    "name files of [gpu]passport_folder, or what nova-gpu passport ADDRESS --json has printed on "
    "hosts"
)


class ShowPassport(base_command.Lister):
    """Show where a card was, its faults, tests and cleanings, on all hosts together.

    Each file is one of the folder in which nova-compute keeps the passports of cards, or the output
    of nova-gpu passport --json on one host. The exit status is 1 if none of them has the card.
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "serial",
            metavar="<serial>",
            help="Serial number or uuid of the card, or the address that it has on a host, such as "
            "0000:88:00.0",
        )
        parser.add_argument(
            "files",
            metavar="<file>",
            nargs="+",
            help=f"File of a card, or of the cards of a host ({_STDIN}: standard input)",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        cards = passport.together([r for file in parsed_args.files for r in _read(file)])
        matches = [card for card in cards if _has(card, parsed_args.serial)]
        if not matches:
            raise exceptions.CommandError(
                f"none of the files has a card {parsed_args.serial}; they have {_some(cards)}"
            )
        for card in matches:
            for line in _head(card, len(matches)):
                self.say(line)
        return _COLUMNS, [
            (passport.when(e.time), e.host, e.address, e.kind, e.text)
            for card in matches
            for e in card.events
        ]


def _has(card: Passport, serial: str) -> bool:
    texts = {text.lower() for record in card.records for text in record.ids.values()}
    return serial.lower() in texts | {record.place for record in card.records}


def _head(card: Passport, count: int) -> Iterator[str]:
    ids = ", ".join(f"{kind} {text}" for kind, text in card.ids.items())
    doubt = "" if count == 1 else f", one of {count} cards of that number"
    yield f"{ids} ({card.product}){doubt}"
    for record in card.records:
        if record.place:
            ill = "".join(f"; {kind} {text}".rstrip() for kind, text in record.faults.items())
            when = passport.when(record.seen)
            yield f"Last seen {when} on {record.host} at {record.place}{ill}"
    yield from (f"Doubtful: {remark}" for remark in card.remarks)
    for kind, number in sorted(card.folded.items()):
        yield f"Before that: {number} times {kind}"


def _read(file: str) -> list[Record]:
    """Return the records in *file*.

    :raises CommandError: if it cannot be read
    """
    place = "standard input" if file == _STDIN else file
    try:
        text = sys.stdin.buffer.read() if file == _STDIN else pathlib.Path(file).read_bytes()
        content = json_text.parse(text)
        return list(map(passport.parse, content if isinstance(content, list) else [content]))
    except OSError as error:
        reason = f"{place} cannot be read: {error.strerror}"
        raise exceptions.CommandError(f"{reason}; {_FILES}") from error
    except ValueError as error:
        reason = f"{place} has no passport of a card ({error})"
        raise exceptions.CommandError(f"{reason}; {_FILES}") from error


def _some(cards: Sequence[Passport], most: int = 3) -> str:
    names = [next(iter(card.ids.values())) for card in cards]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
