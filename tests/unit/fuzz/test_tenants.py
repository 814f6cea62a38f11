# SPDX-License-Identifier: Apache-2.0
"""Texts that a tenant writes, in each field that has any, against what reads or shows them."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from nova import context, objects
from nova import exception as nova_exception
from nova.scheduler.client import report as nova_report
from oslo_utils import timeutils

from nova_gpu.core import exception, printable
from nova_gpu.notifications import Event, EventType
from nova_gpu.scheduler import filters, request_filter, weights
from nova_gpu.virt.usage import records
from tests.fixtures import cloud_gpus, recorded_instances
from tests.fixtures.bases import fuzz as base

_TEXT = base.TEXT | base.LONG
_NOW = datetime.datetime(2026, 10, 1, 12)


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

    @base.fuzzed(identifier=_TEXT)
    def test_records(self, identifier: str) -> None:
        objects.register_all()
        group, has = recorded_instances.GROUP, recorded_instances.resources
        one = recorded_instances.instance("one", has(identifier))
        other = recorded_instances.instance("other", has("0000:05:00.0"))
        devices = recorded_instances.counted([one, other])
        self.assertEqual({(group, "0000:05:00.0")}, devices["other"])
        self.assertIsInstance(devices["one"], frozenset)
        self.assertTrue(records.Records(devices).counted)

    @base.fuzzed(text=_TEXT)
    def test_notifications_and_errors(self, text: str) -> None:
        event = Event(EventType.FAULT, 1, text, text, text, (text,), reason=text, product=text)
        for value in event.payload.values():
            for element in value if isinstance(value, list) else [value]:
                self.assertHarmless(str(element))
        for error in (
            exception.InvalidExtraSpec(text, text, text, text),
            exception.RequestMismatch(text, text),
            exception.PlacementFailed(text, text),
        ):
            self.assertTrue(str(error).isprintable())

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


class _Placement:
    """Nova's client of a Placement that knows each trait, and of which no provider has any"""

    def get(self, url: str, **_: Any) -> Any:
        return SimpleNamespace(status_code=200, json=lambda: {"traits": []})

    def put(self, url: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(status_code=204)
