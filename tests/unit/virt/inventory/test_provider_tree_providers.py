# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import shutil
from unittest import mock

import fixtures
from oslotest import base

from nova_gpu.core import exception, names
from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.virt.inventory import provider_tree

NODE = "compute-7"
KEY = GroupKey("10de", "2335", DeliveryMode.LXC)
NEW = GroupKey("10de", "2330", DeliveryMode.LXC)
UUID, OTHER = "4e8e5957-649f-477b-9e5b-f1f75b21c03c", "9f1c7a52-2b53-4f5c-8f0a-0c9a3d1e2b47"


class ProvidersTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "state/gpu-providers")
        self.path.parent.mkdir()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.client = mock.Mock(spec=["get_provider_by_name"])
        self.client.get_provider_by_name.return_value = {"uuid": OTHER}
        for name in ("_PATIENCE_S", "_PAUSE_S"):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_gpu.virt.inventory.provider_tree.{name}", 0.05)
            )

    def of(self, nodename: str = NODE) -> dict[GroupKey, str]:
        return provider_tree.Providers(self.path).of(self.client, nodename, [KEY, NEW])

    def keep(self) -> None:
        provider_tree.Providers(self.path).keep(NODE, {KEY: UUID})

    def test_kept(self) -> None:
        self.keep()
        self.client.get_provider_by_name.side_effect = OSError("nobody there")
        self.assertEqual({KEY: UUID}, self.of())

    def test_kept_for_another_node(self) -> None:
        self.keep()
        self.assertEqual({KEY: OTHER, NEW: OTHER}, self.of("compute-8"))

    def test_what_was_not_written_to_the_end(self) -> None:
        self.keep()
        text = self.path.read_text()
        for damaged in ("", text[:-5], text.replace(UUID, "a uuid"), "[]", "[[[", '{"node": 1}'):
            self.path.write_text(damaged)
            self.assertEqual({KEY: OTHER, NEW: OTHER}, self.of(), damaged)

    def test_written_when_it_changes(self) -> None:
        kept = provider_tree.Providers(self.path)
        kept.keep(NODE, {})
        self.assertFalse(self.path.exists(), "a host without GPUs")
        kept.keep(NODE, {KEY: UUID})
        self.path.unlink()
        kept.keep(NODE, {KEY: UUID})
        self.assertFalse(self.path.exists())
        kept.keep(NODE, {KEY: UUID, NEW: OTHER})
        self.assertIn(names.provider_name(NODE, NEW), self.path.read_text())
        self.assertEqual({KEY: UUID, NEW: OTHER}, self.of())

    def test_not_written(self) -> None:
        shutil.rmtree(self.path.parent)
        self.keep()
        self.assertIn("do not start before Placement answers: ", self.log.output)

    def test_placement_comes_up(self) -> None:
        answer = {"uuid": OTHER}
        self.client.get_provider_by_name.side_effect = [OSError("nobody there"), answer, answer]
        self.assertEqual({KEY: OTHER, NEW: OTHER}, self.of())

    def test_it_does_not(self) -> None:
        """It is waited for once: there may be many guests."""
        asked = self.client.get_provider_by_name
        asked.side_effect = OSError("nobody there")
        found = provider_tree.Providers(self.path)
        for _ in range(2):
            error = self.assertRaises(
                exception.ProvidersUnknown, found.of, self.client, NODE, [KEY]
            )
        self.assertIn("; reboot the instance hard when Placement answers again", str(error))
        self.assertIn("nobody there", str(error))
        self.assertNotIn("nobody there", error.user_text)
        before = asked.call_count
        self.assertRaises(exception.ProvidersUnknown, found.of, self.client, NODE, [KEY])
        self.assertEqual(before + 1, asked.call_count)
