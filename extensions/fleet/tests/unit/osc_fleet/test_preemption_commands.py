# SPDX-License-Identifier: Apache-2.0
"""Each command of the client, whole, in a cloud in which tenants have written what they may."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import random
import time
import tomllib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from lxml import html
from openstack import fields, resource
from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core import printable
from osc_gpu import failures
from osc_gpu_fleet import create, preemption, retries, start
from tests.fixtures import checkout
from tests.fixtures.bases import fuzz as base
from tests.fixtures.bases import reading
from tests.fixtures.hostile import hostile
from tests.functional import sdk

_PYPROJECT = checkout.ROOT / "pyproject.toml"
# As many servers on each of two hosts; in a long run a command reads more in one go.
_EACH = 60 if base.EXAMPLES in os.environ else 20
# As many of them for each command that reads one alone
_ALONE = 40 if base.EXAMPLES in os.environ else 1


def _written(chance: random.Random) -> dict[str, Any]:
    """The fields of a server that its tenant, or Nova of what that gave it, has written"""
    keys = "gpu:preempt_at", "gpu:preempt_for", hostile(chance)
    properties = {key: hostile(chance) for key in ("gpu:on_stop", hostile(chance))}
    return {
        "name": hostile(chance),
        "metadata": {key: hostile(chance) for key in keys},
        "tags": [hostile(chance) for _ in range(3)],
        "image": {"id": "image", "properties": properties},
        "description": hostile(chance),
        "locked_reason": hostile(chance),
        "OS-EXT-AZ:availability_zone": hostile(chance),
        "fault": {"message": f"{failures.NOT_ENOUGH_HOSTS}{hostile(chance)}", "code": 500},
    }


_SPOT = {"gpus": "= 1", "gpu:preemptible": "1s", "gpu:on_stop": "release"}
_OF_OTHERS = ("gpu_maintenance_create", "gpu_maintenance_delete", "gpu_passport")
# By entry point, with SERVER for each server that a tenant has written of, PAGE for the file to
# write, and SHADOW for a host's file
_ARGUMENTS = {
    "gpu_capacity": ("one", "--project", "p1"),
    "gpu_defrag": ("--flavor", "two", "--apply"),
    "gpu_drain": ("host0",),
    "gpu_explain": ("SERVER",),
    "gpu_flavor_check": (),
    "gpu_flavor_create": ("made", "--gpus", "1"),
    "gpu_group_list": (),
    "gpu_help": (),
    "gpu_host_list": (),
    "gpu_maintenance_list": (),
    "gpu_plan": ("two", "--apply"),
    "gpu_preempt": ("--project", "p1", "--apply", "--notice", "0.001"),
    "gpu_report": ("--html", "PAGE", "--title", "GPUs"),
    "gpu_server_create": ("--flavor", "one", "--image", "image", "--for", "1", "name"),
    "gpu_service_report": (),
    "gpu_shadow": ("SHADOW",),
    "gpu_show": ("SERVER",),
    "gpu_start": ("SERVER",),
    "gpu_usage": (),
}


def _shadow(chance: random.Random) -> dict[str, Any]:
    """A host's file of nova-gpu shadow, in which any program may have written"""
    names = {"uuid": hostile(chance), "flavor": hostile(chance), "set": {"gpus": hostile(chance)}}
    obstacle = {"reason": hostile(chance), "remedy": hostile(chance)}
    return {
        "host": hostile(chance),
        "aliases": [{"name": hostile(chance), "set": {hostile(chance): hostile(chance)}}],
        "instances": [{**names, "can_be_taken_over": False, "obstacles": [obstacle]}],
        "not_read": [hostile(chance)],
    }


class CommandsTest(base.FuzzTestCase, reading.ReadingTestCase):
    """Of the servers one is as it should be, and is shown as it is whatever the others say."""

    PAGE = 25

    def setUp(self) -> None:
        super().setUp()
        entries = tomllib.loads(_PYPROJECT.read_text())["project"]["entry-points"]
        self.commands = {
            name: pkgutil.resolve_name(where) for name, where in entries["openstack.gpu.v1"].items()
        }
        for name in _OF_OTHERS:  # they show nothing that a tenant has written
            del self.commands[name]
        self.assertEqual(_ARGUMENTS.keys(), self.commands.keys())
        clock = SimpleNamespace(sleep=self._wait, monotonic=time.monotonic)
        for module in (create, preemption, retries, start):
            patch = mock.patch.object(module, "time", clock)
            patch.start()
            self.addCleanup(patch.stop)
        # Half of the time: openstacksdk goes through a class' attributes for each object and field.
        original: Any = resource.Resource.__dict__["_attributes_iterator"]

        @functools.cache
        def attributes(cls: type, components: Any = (fields.Body, fields.Header)) -> Any:
            return tuple(original.__func__(cls, components))

        patch = mock.patch.object(
            resource.Resource, "_attributes_iterator", classmethod(attributes)
        )
        patch.start()
        self.addCleanup(patch.stop)
        self.connection = self.connect()
        self.connection.placement.request = _Answers(self.connection.placement.request).request
        cold = self.nova.add_flavor("cold", gpus="= 1", **{"gpu:move": "cold"})
        fleeting = self.nova.add_flavor("fleeting", **_SPOT)
        for name, flavor in (("host0", fleeting), ("host1", cold)):
            self.add_host(name, flavor, _EACH, total=_EACH + 1, vcpus=2 * _EACH)
        self.good, *self.others = self.nova.servers
        self.good["name"] = "good"
        # One that found no host
        now = timeutils.utcnow().isoformat()
        none = {"status": "ERROR", "OS-EXT-SRV-ATTR:host": None, "created": f"{now}Z"}
        pair = self.nova.add_flavor("pair", gpus="= 2")
        self.others.append(self.nova.add_server(reading.new_uuid(), "", pair, **none))

    def _wait(self, seconds: float) -> None:
        """The end of a command that waits: nothing happens here in the meantime."""
        self.waited += 1
        if self.waited > 3:
            raise KeyboardInterrupt

    @base.fuzzed(share=0.05, most=84, shrinks=False, seed=st.integers(0, 2**32))
    def test_of_a_fleet(self, seed: int) -> None:
        """A long run has 10,000 values of each field."""
        chance = random.Random(seed)
        self.write(chance, self.others)
        for name in self.commands:
            if "SERVER" not in _ARGUMENTS[name]:
                self.run_whole(name, chance)

    @base.fuzzed(share=0.05, most=250, shrinks=False, seed=st.integers(0, 2**32))
    def test_of_a_server(self, seed: int) -> None:
        """A long run has 10,000 values of each field."""
        chance = random.Random(seed)
        servers = chance.sample(self.others, _ALONE)
        self.write(chance, servers)
        for name in self.commands:
            for server in servers if "SERVER" in _ARGUMENTS[name] else ():
                self.run_whole(name, chance, server["id"])

    def write(self, chance: random.Random, servers: list[dict[str, Any]]) -> None:
        """Write what the servers' tenants may; a server that is stopped gave its GPU back."""
        statuses = chance.choice((("ACTIVE",), ("ACTIVE", "SHUTOFF")))
        for server in servers:
            server.update(_written(chance), status=chance.choice(statuses))
            self.nova.actions[server["id"]] = [
                {
                    "action": "start",
                    "start_time": "2026-11-26T00:00:00",
                    "message": "Error",
                    "request_id": "req-1",
                    "events": [{"details": hostile(chance)}],
                }
            ]
        self.others[-1]["status"] = "ERROR"
        if chance.random() < 0.5:  # A hostile zone has no host, so that no command takes GPUs.
            self.others[-1]["OS-EXT-AZ:availability_zone"] = ""

    def run_whole(self, name: str, chance: random.Random, server: str = "") -> None:
        self.waited, command = 0, self.commands[name]
        page, how = self.root / "page.html", chance.choice(("table", "json", "value", "yaml"))
        shadow = self.root / "shadow.json"
        shadow.write_text(json.dumps(_shadow(chance)))
        words = {"SERVER": server, "PAGE": str(page), "SHADOW": str(shadow)}
        arguments = [words.get(word, word) for word in _ARGUMENTS[name]]
        if "--apply" in arguments and chance.random() < 0.5:
            arguments.remove("--apply")
        if name not in ("gpu_help", "gpu_start", "gpu_report"):
            arguments += ["-f", how]
        printed, errors = self.printed(command, *arguments)
        self.assertHarmless(printed + errors)
        for line in errors.split("\n"):
            self.assertLessEqual(len(line), printable.MOST_OF_A_LINE)
        if how == "json" and printed and "-f" in arguments:
            self.assertShort(shown := json.loads(printed))
            if name == "gpu_usage":
                self.assertIn("good", {row["Name"] for row in shown})
        if name == "gpu_report":
            read = html.fromstring(page.read_text())
            self.assertEqual([], read.xpath("//script | //img | //iframe | //@onclick"))
            self.assertIn("good", read.xpath("//bdi/text()"))
            for text in read.itertext():
                self.assertHarmless(text)

    def assertShort(self, value: Any) -> None:
        """Each text, and each line of it, is printable and cut to a length."""
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, list):
            for element in value:
                self.assertShort(element)
        if isinstance(value, str):
            self.assertHarmless(value)
            for line in value.split("\n"):
                self.assertLessEqual(len(line), printable.MOST_OF_A_LINE)

    def printed(self, command: type, *arguments: str) -> tuple[str, str]:
        """Return what *command* writes to standard output and beside it, its refusal last."""
        # One for all commands: a new one takes longer than most of them.
        with mock.patch.object(sdk, "connect", lambda *_, **__: self.connection):
            app, made, parsed = sdk.prepare(None, command, *arguments)
        refusal = ""
        try:
            made.run(parsed)
        except (exceptions.CommandError, KeyboardInterrupt) as error:
            refusal = str(error)
        return app.stdout.getvalue(), app.stderr.getvalue() + refusal


class _Answers:
    """Placement's answers, which have no tenant's text, until something is written there."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send
        self._known: dict[str, Any] = {}

    def request(self, url: str, method: str, **options: Any) -> Any:
        if method != "GET":
            self._known.clear()
            return self._send(url, method, **options)
        if url not in self._known:
            self._known[url] = self._send(url, method, **options)
        return self._known[url]
