# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import shutil
import unittest
from unittest import mock

import fixtures
from nova.compute import provider_tree as nova_provider_tree
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.core import exception, names
from nova_gpu.core.model import DeliveryMode, GroupKey, Product
from nova_gpu.core.placement import inventory
from nova_gpu.virt.inventory import provider_tree
from tests.fixtures import cards

ROOT = uuidutils.generate_uuid()

FERMI = Product("10de", "1091", "Tesla M2090", "fermi")
KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
A, B = (cards.placed(address, product=FERMI) for address in ("0000:04:00.0", "0000:05:00.0"))
GPUS = {gpu.address: gpu for gpu in (A, B)}
NAME = "node_gpu_10de_1091_lxc"
NODE = "compute-7"
KNOWN = GroupKey("10de", "2335", DeliveryMode.LXC)
NEW = GroupKey("10de", "2330", DeliveryMode.LXC)
UUID, ASKED = "4e8e5957-649f-477b-9e5b-f1f75b21c03c", "9f1c7a52-2b53-4f5c-8f0a-0c9a3d1e2b47"


class ProviderTreeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.tree = nova_provider_tree.ProviderTree()
        self.tree.new_root("node", ROOT)
        self.supply = mock.Mock(spec=[])  # which is not asked

    def _publish(self, reserved: int = 0) -> str:
        present = provider_tree.groups_in(self.tree, "node", in_parts=False)
        uuid = provider_tree.ensure(self.tree, "node", present, [KEY])[KEY]
        offer = provider_tree.ProviderData(
            inventory.inventory(len(GPUS), reserved),
            lambda present: provider_tree.traits(FERMI, "LXC", present),
            GPUS,
            "CUSTOM_GPU_MODEL_TESLA_M2090",
        )
        provider_tree.publish(self.tree, uuid, KEY, offer, self.supply)
        return uuid

    def test_a_group_is_found_again_with_what_an_operator_has_given_it(self) -> None:
        """And another node's groups are not ours."""
        uuid = self._publish()
        self.tree.add_traits(uuid, "CUSTOM_RACK_7", f"{names.TRAIT_TOTAL}1")
        self.tree.new_root("node2", uuidutils.generate_uuid())
        self.tree.new_child("node2_gpu_10de_2335_lxc", "node2")
        self.tree.new_child("node_0000:05:00.0", ROOT)
        self.assertEqual(uuid, self._publish(reserved=1))
        groups = (provider_tree.groups_in(self.tree, "node", in_parts=n) for n in (False, True))
        self.assertEqual([{KEY: uuid}, {}], list(groups))
        traits = self.tree.data(uuid).traits
        self.assertLessEqual({"OWNER_NOVA", "CUSTOM_GPU", "CUSTOM_RACK_7"}, traits)
        totals = {name for name in traits if name.startswith(names.TRAIT_TOTAL)}
        self.assertEqual({f"{names.TRAIT_TOTAL}{len(GPUS)}"}, totals)
        # A trait of the node would satisfy a query without choosing a group.
        self.assertEqual(set(), self.tree.data(ROOT).traits)
        provider_tree.withdraw(self.tree, uuid, KEY, self.supply)
        amounts = self.tree.data(uuid).inventory["PGPU"]
        self.assertEqual((2, 2), (amounts["total"], amounts["reserved"]))

    def test_a_class_for_the_model_stays(self) -> None:
        """Placement refuses to remove what instances have."""
        record = self.tree.data(self._publish(reserved=1)).inventory["PGPU"]
        of_then = dict.fromkeys(
            (
                "PGPU",
                "CUSTOM_GPU_MODEL_TESLA_M2090",
                "CUSTOM_GPU_MODEL_OLD",
                "CUSTOM_OF_A_LATER_RELEASE",
            ),
            record,
        )
        self.tree.update_inventory(NAME, of_then)
        inventories = self.tree.data(self._publish(reserved=1)).inventory
        self.assertEqual(
            {
                "PGPU": record,
                "CUSTOM_GPU_MODEL_TESLA_M2090": record,
                "CUSTOM_GPU_MODEL_OLD": record | {"reserved": 2},
                "CUSTOM_OF_A_LATER_RELEASE": record | {"reserved": 2},
            },
            inventories,
        )


class ProvidersTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "state/gpu-providers")
        self.path.parent.mkdir()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.client = mock.Mock(spec=["get_provider_by_name"])
        self.client.get_provider_by_name.return_value = {"uuid": ASKED}
        for name in ("_PATIENCE_S", "_PAUSE_S"):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_gpu.virt.inventory.provider_tree.{name}", 0.05)
            )

    def of(self, nodename: str = NODE) -> dict[GroupKey, str]:
        return provider_tree.Providers(self.path).of(self.client, nodename, [KNOWN, NEW])

    def keep(self) -> None:
        provider_tree.Providers(self.path).keep(NODE, {KNOWN: UUID})

    def test_kept(self) -> None:
        self.keep()
        self.assertEqual({KNOWN: ASKED, NEW: ASKED}, self.of("compute-8"), "for another node")
        answer, away = {"uuid": ASKED}, OSError("nobody there")
        self.client.get_provider_by_name.side_effect = [away, answer, answer]
        self.assertEqual({KNOWN: UUID}, self.of())
        self.path.unlink()
        self.assertEqual({KNOWN: ASKED, NEW: ASKED}, self.of(), "when Placement comes up")

    def test_written_when_it_changes(self) -> None:
        providers = provider_tree.Providers(self.path)
        providers.keep(NODE, {})
        self.assertFalse(self.path.exists(), "a host without GPUs")
        providers.keep(NODE, {KNOWN: UUID})
        self.path.unlink()
        providers.keep(NODE, {KNOWN: UUID})
        self.assertFalse(self.path.exists())
        providers.keep(NODE, {KNOWN: UUID, NEW: ASKED})
        self.assertIn(names.provider_name(NODE, NEW), self.path.read_text())
        self.assertEqual({KNOWN: UUID, NEW: ASKED}, self.of())

    def test_not_written(self) -> None:
        shutil.rmtree(self.path.parent)
        self.keep()
        self.assertIn("do not start before Placement answers: ", self.log.output)

    def test_it_does_not(self) -> None:
        """It is waited for once: there may be many guests."""
        lookup = self.client.get_provider_by_name
        lookup.side_effect = OSError("nobody there")
        providers = provider_tree.Providers(self.path)
        for _ in range(2):
            error = self.assertRaises(
                exception.ProvidersUnknown, providers.of, self.client, NODE, [KNOWN]
            )
        self.assertIn("; reboot the instance hard when Placement answers again", str(error))
        self.assertIn("nobody there", str(error))
        self.assertNotIn("nobody there", error.user_text)
        before = lookup.call_count
        self.assertRaises(exception.ProvidersUnknown, providers.of, self.client, NODE, [KNOWN])
        self.assertEqual(before + 1, lookup.call_count)
