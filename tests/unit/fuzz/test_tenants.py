# SPDX-License-Identifier: Apache-2.0
"""Texts that a tenant writes, in each field that has any, against what reads or shows them."""

from __future__ import annotations

import datetime
import io
import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from lxml import html
from nova import context, objects
from nova import exception as nova_exception
from nova.scheduler.client import report as nova_report
from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core import exception, printable
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.notifications import Event, EventType
from nova_gpu.scheduler import filters, request_filter, weights
from nova_gpu.virt.usage import records
from osc_gpu import base_command, report
from tests.fixtures import cloud_gpus, recorded_instances
from tests.fixtures.bases import fuzz as base
from tests.fixtures.reports import PROVIDER

_TEXT = base.TEXT | base.LONG
_NOW = datetime.datetime(2026, 10, 1, 12)


class _List(base_command.Lister):
    def take_action(self, parsed_args: Any) -> Any:
        self.say(parsed_args.text)
        if parsed_args.fails:
            raise exceptions.CommandError(parsed_args.text)
        cell = parsed_args.text
        shown = base_command.Lines([{"a": cell}, cell], str)
        return ("Name", "All", "Short"), [(cell, shown, base_command.Short(cell, cell))]


class TenantsTest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        timeutils.set_time_override(_NOW)
        self.addCleanup(timeutils.clear_time_override)

    @base.fuzzed(text=_TEXT)
    def test_what_is_shown(self, text: str) -> None:
        shown = printable.printable(text)
        self.assertHarmless(shown)
        self.assertNotIn("\n", shown)
        self.assertLessEqual(len(shown), printable.MOST)
        self.assertEqual(shown, printable.printable(shown))
        shown.encode()

    @base.fuzzed(text=_TEXT, how=st.sampled_from(["table", "json", "value", "yaml"]))
    def test_commands(self, text: str, how: str) -> None:
        app = SimpleNamespace(stdout=io.StringIO(), stderr=io.StringIO())
        command = _List(app, None)
        parsed = command.get_parser("openstack").parse_args(["-f", how])
        parsed.text, parsed.fails = text, False
        command.run(parsed)
        self.assertHarmless(app.stdout.getvalue() + app.stderr.getvalue())
        if how == "json":
            (row,) = json.loads(app.stdout.getvalue())
            self.assertHarmless(row["Name"] + row["Short"])
        parsed.fails = True
        error = self.assertRaises(exceptions.CommandError, command.run, parsed)
        self.assertHarmless(str(error))

    @base.fuzzed(identifier=_TEXT)
    def test_records(self, identifier: str) -> None:
        objects.register_all()
        group, has = recorded_instances.GROUP, recorded_instances.resources
        one = recorded_instances.instance("one", has(identifier))
        other = recorded_instances.instance("other", has("0000:05:00.0"))
        found = recorded_instances.counted([one, other])
        self.assertEqual({(group, "0000:05:00.0")}, found["other"])
        self.assertIsInstance(found["one"], frozenset)
        self.assertTrue(records.Records(found).counted)

    @base.fuzzed(text=_TEXT, traits=st.lists(base.TEXT, max_size=3))
    def test_notifications_errors_and_traits(self, text: str, traits: list[str]) -> None:
        event = Event(EventType.FAULT, 1, text, text, text, (text,), reason=text, product=text)
        for value in event.payload.values():
            for each in value if isinstance(value, list) else [value]:
                self.assertHarmless(str(each))
        for error in (
            exception.InvalidExtraSpec(text, text, text, text),
            exception.RequestMismatch(text, text),
            exception.PlacementFailed(text, text),
        ):
            self.assertTrue(str(error).isprintable())
        reserved_hosts.in_force([*traits, f"CUSTOM_GPU_KEPT_UNTIL_{text}"], _NOW)

    @base.fuzzed(text=_TEXT, traits=st.lists(_TEXT, max_size=3), specs=st.booleans())
    def test_the_scheduler(self, text: str, traits: list[str], specs: bool) -> None:
        """Of an image and of hints; a refusal is a sentence that its user reads."""
        objects.register_all()
        spec = cloud_gpus.request_spec(
            {"gpus": "= 1"} if specs else {}, image_traits=traits, machine_type=text or "q35"
        )
        spec.scheduler_hints = {text: [text], "group": [text]}
        state = cloud_gpus.host_state(cloud_gpus.FERMI)
        client = _Placement()
        try:
            with mock.patch.object(nova_report, "report_client_singleton", lambda: client):
                request_filter.gpu_request_filter(context.get_admin_context(), spec)
            (passing,) = filters.GPUFilter().filter_all([state], spec)
        except nova_exception.NovaException as error:
            self.assertHarmless(str(error))
            self.assertLessEqual(len(str(error)), printable.MOST_OF_A_LINE)
            return
        weighed = weights.GPUWeigher().weigh_objects(
            [SimpleNamespace(obj=passing, weight=1.0)], spec
        )
        self.assertEqual(1, len(weighed))

    @base.fuzzed(share=0.3, text=_TEXT)
    def test_the_page(self, text: str) -> None:
        held = report.Held(text, text, text, text, PROVIDER, 1)
        fleet = report.Fleet((PROVIDER,), (held,), (report.Capacity(text, text, (), text),))
        page = report.render(fleet, text, _NOW)
        page.encode()
        for each in html.fromstring(page).xpath("//bdi/text()"):
            self.assertHarmless(each)


class _Placement:
    """Nova's client of a Placement that knows each trait, and of which no provider has any"""

    def get(self, url: str, **_: Any) -> Any:
        return SimpleNamespace(status_code=200, json=lambda: {"traits": []})

    def put(self, url: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(status_code=204)
