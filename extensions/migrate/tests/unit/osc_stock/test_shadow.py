# SPDX-License-Identifier: Apache-2.0
"""Files of hosts, and flavors of a cloud that openstacksdk reads page by page"""

from __future__ import annotations

import json
import pathlib
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu_migrate import shadow
from tests.fixtures import checkout, nova_api
from tests.functional import sdk

ALIAS = "pci_passthrough:alias"
A2, A10 = {"gpus": "= 1", "gpu:model": "s== A2"}, {"gpus": "= 1", "gpu:model": "s== A10"}
PAGE = checkout.ROOT / "doc/source/reference/gpu-commands/shadow.txt"
BUSY = {"reason": "it has the task deleting", "remedy": "wait"}

Json = dict[str, Any]


def host(name: str, *instances: Json, **aliases: dict[str, str]) -> Json:
    """What nova-gpu shadow prints there, as far as the client reads it"""
    named = [{"name": alias, "set": words} for alias, words in aliases.items()]
    return {"host": name, "aliases": named, "instances": list(instances), "not_read": []}


def instance(uuid: str, flavor: str, words: dict[str, str], *obstacles: Json) -> Json:
    return {
        "uuid": uuid,
        "flavor": flavor,
        "set": words,
        "can_be_taken_over": not obstacles,
        "obstacles": list(obstacles),
    }


class ShadowTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.nova = nova_api.NovaAPI(2, lambda path: None)
        self.flavor("plain")
        endpoint = SimpleNamespace(endpoint="http://placement.test")
        api = SimpleNamespace(base_url=nova_api.URL, project_id="p1")
        cloud = SimpleNamespace(api=api, placement=SimpleNamespace(fixture=endpoint))
        self.connection = sdk.connect(cloud)
        self.connection.session.session.mount(nova_api.URL, self.nova)
        self.enterContext(mock.patch.object(sdk, "connect", lambda *_, **__: self.connection))

    def flavor(self, name: str, alias: str = "") -> None:
        # openstacksdk asks again for properties of which a flavor has none.
        self.nova.add_flavor(name, **({ALIAS: alias} if alias else {"hw:cpu_policy": "shared"}))

    def file(self, content: Any) -> str:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.json"
        path.write_text(json.dumps(content))
        return str(path)

    def shown(self, *hosts: Json, how: str = "json") -> tuple[int, str, str]:
        return sdk.shown(None, shadow.ShowShadow, *map(self.file, hosts), "-f", how)

    def rows(self, *hosts: Json) -> list[Json]:
        return list(json.loads(self.shown(*hosts)[1]))

    def row(self, *hosts: Json) -> Json:
        (row,) = self.rows(*hosts)
        return dict(row)

    def remark(self, *hosts: Json) -> str:
        """Return the only remark about the only flavor, which gets no properties."""
        row = self.row(*hosts)
        (remark,) = row["Remarks"]
        self.assertEqual({}, row["Flavor for nova-gpu"])
        return str(remark)


class FlavorsTest(ShadowTestCase):
    def test_by_alias(self) -> None:
        self.flavor("pair", "a2:2, nic:1")
        self.flavor("nic", "nic:1")
        pair = {"gpus": "= 2", "gpu:model": "s== A2"}
        status, printed, beside = self.shown(
            host("host1", instance("i1", "pair", {**pair, ALIAS: "nic:1"}), a2=A2),
            host("host2", instance("i2", "pair", {**pair, ALIAS: "nic:1"}), a2=A2),
        )
        row = {
            "Flavor": "pair",
            "Alias": "a2:2, nic:1",
            "Flavor for nova-gpu": {**pair, ALIAS: "nic:1"},
            "Instances": 2,
            "Can Be Taken Over": 2,
            "Remarks": [],
        }
        self.assertEqual([row], json.loads(printed))
        self.assertEqual(
            "Hosts: 2; instances with GPUs of stock Nova: 2; can be taken over: 2.\n", beside
        )
        self.assertEqual(0, status)

    def test_a_wrong_number(self) -> None:
        self.flavor("one", "a2:0")
        remark = self.remark(host("host1", a2=A2))
        self.assertEqual(f"{ALIAS} has a2 without a number above 0; correct it", remark)


class DisagreementsTest(ShadowTestCase):
    def test_hosts(self) -> None:
        self.flavor("one", "gpu:1")
        others = [host(f"host{number}", gpu=A10) for number in range(2, 7)]
        self.assertEqual(
            "the alias gpu gives gpu:model='s== A2' on host1, gpu:model='s== A10' on host2, host3, "
            "host4 and 2 more hosts; create a flavor for each product",
            self.remark(host("host1", gpu=A2), *others),
        )


class InstancesTest(ShadowTestCase):
    def test_one_that_cannot_be_taken_over(self) -> None:
        self.flavor("one", "a2:1")
        own = instance("i1", "one", A2), instance("i2", "one", A2, BUSY)
        status, printed, beside = self.shown(host("host1", *own, a2=A2))
        (row,) = json.loads(printed)
        self.assertEqual((2, 1), (row["Instances"], row["Can Be Taken Over"]))
        self.assertEqual(["i2 on host1: it has the task deleting; wait"], row["Remarks"])
        self.assertIn("stock Nova: 2; can be taken over: 1.", beside)
        self.assertEqual(1, status)

    def test_a_user_who_is_no_administrator(self) -> None:
        """Nova lists fewer flavors, and says so only of its services."""
        refused = sdk_exc.ForbiddenException("Policy doesn't allow it")
        with mock.patch.object(type(self.connection.compute), "services", side_effect=refused):
            own = host("host1", instance("i1", "private", A2), a2=A2)
            self.assertIn("Only administrators see all flavors", self.shown(own)[2])
            self.assertRegex(self.row(own)["Remarks"][0], "^deleted, or private to other projects")

    def test_the_page(self) -> None:
        self.flavor("a2.small", "a2:1")
        self.flavor("a2.pair", "a2:2,nic:1")
        _, printed, beside = self.shown(
            host("host1", instance("5b1ec5b0", "a2.small", A2), a2=A2),
            host("host2", instance("9c0d7f12", "a2.small", A2, BUSY), a2=A2),
            how="table",
        )
        self.assertEqual(PAGE.read_text(), beside + printed)


class FilesTest(ShadowTestCase):
    def refusal(self, *files: str) -> str:
        with self.assertRaises(exceptions.CommandError) as raised:
            sdk.shown(None, shadow.ShowShadow, *files)
        self.assertNotIn("\n", str(raised.exception))
        return str(raised.exception)

    def test_of_another_command(self) -> None:
        good = host("host1", instance("i1", "one", A2, BUSY), a2=A2)
        wrong: list[Any] = [[], {}, "host1", None]
        wrong += [{key: good[key] for key in good if key != missing} for missing in good]
        wrong += [good | {key: 1} for key in good]
        wrong += [good | {"aliases": [{"name": "a2", "set": {"gpus": [1]}}]}]
        wrong += [good | {"instances": [{"uuid": "i1"}]}]
        for content in wrong:
            with self.subTest(content):
                self.assertIn(
                    "is not the output of this version's nova-gpu shadow; write it",
                    self.refusal(self.file(content)),
                )

    def test_of_no_json_and_of_one_host_twice(self) -> None:
        good = self.file(host("host1", instance("i1", "one", A2, BUSY), a2=A2))
        self.assertIn("is of the host host1, as a file before it is", self.refusal(good, good))
        wrong = self.file([])
        pathlib.Path(wrong).write_text("+----+\n")
        self.assertIn("is not JSON (", self.refusal(wrong))
