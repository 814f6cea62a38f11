# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu shadow FILE``: shows what flavors of stock Nova with GPUs say to nova-gpu."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions
from osc_lib.cli import format_columns

from nova_gpu.core import names, printable
from osc_gpu import base_command, flavors, rest
from osc_gpu.base_command import Lines

_COLUMNS = ("Flavor", "Alias", "Flavor for nova-gpu", "Instances", "Can Be Taken Over", "Remarks")
_STDIN = "-"
_MOST_HOSTS = 3
_WRITE = "write it on the host: nova-gpu shadow --json > FILE"
_DELETED = "deleted: Nova no longer lists it, and its instances keep it"
_NOT_LISTED = "deleted, or private to other projects: an administrator sees which with this command"
# The keys and types of a host's file that are read here
_TEXTS = {str: str}
_OBSTACLE = {"reason": str, "remedy": str}
_INSTANCE = {"uuid": str, "flavor": str, "set": _TEXTS, "can_be_taken_over": bool}
_FILE = {
    "host": str,
    "aliases": [{"name": str, "set": _TEXTS}],
    "instances": [{**_INSTANCE, "obstacles": [_OBSTACLE]}],
    "not_read": [str],
}

_Json = Mapping[str, Any]
# The properties of a flavor, sorted
_Words = tuple[tuple[str, str], ...]
# For each alias, hosts by the words for one of its cards; empty words: cards of several products
_Meanings = Mapping[str, Mapping[_Words, Sequence[str]]]


class ShowShadow(base_command.Lister):
    """Show what the flavors of stock Nova with GPUs say to nova-gpu, and count their instances.

    Each file is the output of nova-gpu shadow --json on one host. The exit status is 1 if an
    instance cannot be taken over, or a host could not read a source.
    """

    _in_the_way = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "files",
            metavar="<file>",
            nargs="+",
            help="Output of nova-gpu shadow --json on a host (-: standard input)",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        hosts = _read(parsed_args.files)
        connection = self.connection(parsed_args)
        listed = {flavor.name: flavor.extra_specs or {} for flavor in flavors.read(connection)}
        unlisted = _DELETED if _sees_all(connection) else _NOT_LISTED
        if unlisted == _NOT_LISTED:
            self.say("Only administrators see all flavors: private ones may be missing.")
        for name, host in hosts.items():
            for reason in host["not_read"]:
                self.say(f"{name}: not read: {reason}; run nova-gpu shadow there again")
                self._in_the_way = True
        meanings, instances = _meanings(hosts), _instances(hosts)
        rows = []
        for name in sorted(listed.keys() | instances.keys()):
            alias, own = listed.get(name, {}).get(names.PCI_ALIAS, ""), instances.get(name, {})
            if own or any(item in meanings for item, _ in _items(alias)):
                remarks = [] if name in listed else [unlisted]
                rows.append(_row(name, alias, meanings, own, remarks))
        count, able = sum(row[3] for row in rows), sum(row[4] for row in rows)
        self._in_the_way |= able < count
        self.say(
            f"Hosts: {len(hosts)}; instances with GPUs of stock Nova: {count}; can be taken "
            f"over: {able}."
        )
        return _COLUMNS, rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or int(self._in_the_way)


def _sees_all(connection: Any) -> bool:
    """Return whether Nova lists all flavors to the user.

    To users who are no administrators it lists no private ones of other projects, without an error.
    The services, which are for administrators as well, it refuses to them.
    """
    try:
        with rest.clean_refusals("Nova"):
            next(iter(connection.compute.services(binary="nova-compute")), None)
    except rest.NotPermitted:
        return False
    return True


def _read(files: Iterable[str]) -> dict[str, _Json]:
    """Return the content of *files* by host.

    :raises CommandError: if one cannot be read, is of another command, or two are of one host
    """
    hosts: dict[str, _Json] = {}
    for file in files:
        place = "standard input" if file == _STDIN else file
        try:
            path = pathlib.Path(file)
            host = json.loads(sys.stdin.buffer.read() if file == _STDIN else path.read_bytes())
        except OSError as e:
            raise exceptions.CommandError(f"{place} cannot be read: {e.strerror}; {_WRITE}") from e
        except (ValueError, RecursionError) as e:
            raise exceptions.CommandError(f"{place} is not JSON ({e}); {_WRITE}") from e
        if not _is_like(host, _FILE):
            raise exceptions.CommandError(
                f"{place} is not the output of this version's nova-gpu shadow; {_WRITE}"
            )
        if host["host"] in hosts:
            raise exceptions.CommandError(
                f"{place} is of the host {host['host']}, as a file before it is; leave one out"
            )
        hosts[host["host"]] = host
    return hosts


def _is_like(value: Any, shape: Any) -> bool:
    """Return whether *value*, of JSON, has the keys and types of *shape*."""
    if isinstance(shape, type):
        return isinstance(value, shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_is_like(item, shape[0]) for item in value)
    if not isinstance(value, dict):
        return False
    if shape is _TEXTS:
        return all(isinstance(text, str) for text in value.values())
    return all(key in value and _is_like(value[key], item) for key, item in shape.items())


def _words(properties: Mapping[str, str]) -> _Words:
    return tuple(sorted(properties.items()))


def _own(properties: Mapping[str, str]) -> _Words:
    """Return nova-gpu's words, without what the alias gives besides GPUs."""
    return _words({key: value for key, value in properties.items() if key != names.PCI_ALIAS})


def _meanings(hosts: Mapping[str, _Json]) -> _Meanings:
    meanings: dict[str, dict[_Words, list[str]]] = {}
    for name, host in hosts.items():
        for alias in host["aliases"]:
            by_words = meanings.setdefault(alias["name"], {})
            by_words.setdefault(_words(alias["set"]), []).append(name)
    return meanings


def _instances(hosts: Mapping[str, _Json]) -> dict[str, dict[str, list[_Json]]]:
    """Return the entries of instances by flavor and uuid; one that moves has two hosts' entries."""
    instances: dict[str, dict[str, list[_Json]]] = {}
    for name, host in hosts.items():
        for entry in host["instances"]:
            by_uuid = instances.setdefault(entry["flavor"], {})
            by_uuid.setdefault(entry["uuid"], []).append({**entry, "host": name})
    return instances


def _row(
    name: str,
    alias: str,
    meanings: _Meanings,
    instances: Mapping[str, Sequence[_Json]],
    remarks: list[str],
) -> tuple[Any, ...]:
    """Return a flavor's row.

    :param alias: its property; empty if it has none or is deleted
    :param instances: as :func:`_instances` for this flavor
    :param remarks: those that are known before
    """
    entries = [entry for by_host in instances.values() for entry in by_host]
    has = {_own(entry["set"]): entry["set"] for entry in entries}
    properties, mistakes = _translated(alias, meanings)
    if not properties and not mistakes and len(has) == 1:
        (properties,) = has.values()
    own = _own(properties)
    if not mistakes and list(has) not in ([], [own]):
        remarks.append(f"its instances have {_either(has)}; create a flavor for each")
    remarks += mistakes
    if own and names.MODEL not in properties and names.GPUS in properties:
        remarks.append(
            "its cards' model has no name, so it would get any GPU; set [gpu]product on the hosts, "
            "and run nova-gpu shadow there again"
        )
    remarks += [
        f"{entry['uuid']} on {entry['host']}: {obstacle['reason']}; {obstacle['remedy']}"
        for entry in entries
        for obstacle in entry["obstacles"]
    ]
    able = [all(e["can_be_taken_over"] for e in by_host) for by_host in instances.values()]
    shown = format_columns.DictColumn(printable.within(properties))
    return name, alias, shown, len(able), sum(able), Lines(remarks)


def _items(alias: str) -> Iterator[tuple[str, str]]:
    """Yield the names and numbers in the property *alias*, as Nova reads them."""
    for item in alias.split(","):
        name, _, number = item.partition(":")
        yield name.strip(), number.strip()


def _translated(alias: str, meanings: _Meanings) -> tuple[dict[str, str], list[str]]:
    """Return the properties that say to nova-gpu what the property *alias* says, and mistakes.

    There are no properties if there are mistakes, or the alias gives no GPUs.
    """
    total, others, mistakes, conditions = 0, [], [], []
    for name, number in _items(alias):
        if name not in meanings:
            others.append(f"{name}:{number}")
        elif not number.isdecimal() or not int(number):
            mistakes.append(f"{names.PCI_ALIAS} has {name} without a number above 0; correct it")
        else:
            total += int(number)
            mistakes += _disagreement(name, meanings[name])
            conditions += [_conditions(words) for words in meanings[name]]
    different = list(dict.fromkeys(conditions))
    if not mistakes and len(different) > 1:
        mistakes.append(
            f"it gives cards of several products, and nova-gpu those of one: {_either(different)}; "
            "create a flavor for each"
        )
    if mistakes or not different:
        return {}, mistakes
    rest_of_alias = {names.PCI_ALIAS: ",".join(others)} if others else {}
    return {names.GPUS: f"= {total}", **dict(different[0]), **rest_of_alias}, []


def _disagreement(name: str, hosts_by_words: Mapping[_Words, Sequence[str]]) -> Iterator[str]:
    """Yield a remark if no flavor says to all hosts what the alias says."""
    if len(hosts_by_words) > 1 or () in hosts_by_words:
        texts = [
            f"{_text(_conditions(words)) if words else 'several products'} on {_some(hosts)}"
            for words, hosts in hosts_by_words.items()
        ]
        yield f"the alias {name} gives {', '.join(texts)}; create a flavor for each product"


def _conditions(words: _Words) -> _Words:
    return tuple((key, value) for key, value in words if key != names.GPUS)


def _text(words: _Words) -> str:
    return " ".join(f"{key}='{value}'" for key, value in words) or "cards without a model's name"


def _either(different: Iterable[_Words]) -> str:
    return " or ".join(map(_text, different))


def _some(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_HOSTS
    return ", ".join(hosts[:_MOST_HOSTS]) + (f" and {more} more hosts" if more > 0 else "")
