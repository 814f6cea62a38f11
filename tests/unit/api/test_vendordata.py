# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import webob
import yaml
from nova import exception as nova_exception
from nova import objects
from oslo_utils.fixture import uuidsentinel
from paste.deploy import loadwsgi

from nova_gpu.api import vendordata
from nova_gpu.core.guest import devices
from tests.fixtures.compute import resources
from tests.fixtures.guest_trees import PAIR, told

ROOT = pathlib.Path(__file__).parents[3]
SAMPLE = ROOT / "etc/nova/api-paste.ini.sample"
USER_DATA = ROOT / "doc/source/user/nccl-topology.yaml"
HELD = (uuidsentinel.provider, "0000:17:00.0")


class VendordataTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.instance = objects.Instance(
            uuid=uuidsentinel.instance,
            system_metadata={"boot_roles": "member", **devices.to_metadata(told(*PAIR))},
            resources=resources(HELD),
        )
        patch = mock.patch.object(vendordata, "_instance", self._read)
        patch.start()
        self.addCleanup(patch.stop)
        self.app = vendordata.factory({})

    def _read(self, uuid: str) -> objects.Instance:
        if uuid != self.instance.uuid:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        return self.instance

    def ask(self, body: Any = None, path: str = "/", **headers: str) -> webob.Response:
        request = webob.Request.blank(path, method="POST")
        request.json_body = {"instance-id": self.instance.uuid} if body is None else body
        request.headers.update({"X-Identity-Status": "Confirmed", "X-Roles": "reader, service"})
        request.headers.update(headers)
        return request.get_response(self.app)

    def test_what_a_guest_is_told(self) -> None:
        answer = self.ask()
        self.assertEqual(200, answer.status_int)
        self.assertEqual(told(*PAIR), answer.json_body["devices"])
        self.assertIn('<cpu numaid="0">', answer.json_body["nccl_topology"])

    def test_nothing_of_what_it_has_no_more(self) -> None:
        for held in (None, resources()):
            self.instance.resources = held
            self.assertEqual({}, self.ask().json_body)
        self.instance.resources = resources(HELD)
        self.instance.system_metadata = {}
        self.assertEqual({}, self.ask().json_body)

    def test_who_may_ask(self) -> None:
        """Else who reaches the API would learn where anybody's cards are."""
        unconfirmed = {"X-Identity-Status": "Invalid"}
        self.assertEqual(401, self.ask(**unconfirmed).status_int)
        self.assertEqual(403, self.ask(**{"X-Roles": "member,reader"}).status_int)
        self.assertEqual(200, self.ask(**{"X-Roles": "Admin"}).status_int)

    def test_what_is_asked(self) -> None:
        for body, expected in (
            ({"instance-id": uuidsentinel.other}, 404),
            ({}, 400),
            ([], 400),
            ("text", 400),
        ):
            with self.subTest(body=body):
                self.assertEqual(expected, self.ask(body).status_int)

    def test_paste_finds_it(self) -> None:
        """In nova-api's api-paste.ini, below Nova's own map of paths"""
        named = "[composite:osapi_compute]\n"
        filters = "paste.filter_factory = oslo_middleware:HTTPProxyToWSGI.factory\n"
        text = SAMPLE.read_text().replace(
            named, f"{named}use = call:nova.api.openstack.urlmap:urlmap_factory\n"
        )
        # Keystone's is taken for the other, which lets pass whom it is told to.
        for name in ("http_proxy_to_wsgi", "authtoken"):
            text += f"[filter:{name}]\n{filters}"
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "api-paste.ini")
        path.write_text(text)
        self.app = loadwsgi.loadapp(f"config:{path}", name="osapi_compute")
        self.assertEqual(told(*PAIR), self.ask(path="/gpu").json_body["devices"])


class UserDataTest(unittest.TestCase):
    def test_what_the_guide_has_guests_do(self) -> None:
        """The script of the user data, with a config drive's file"""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        script, drive, target = folder / "script", folder / "vendor_data2.json", folder / "topology"
        written = yaml.safe_load(USER_DATA.read_text())["write_files"]
        script.write_text(written[0]["content"])
        arguments = [sys.executable, str(script), drive.as_uri(), str(target)]
        self.assertIn(f"ExecStart={written[0]['path']} http://", written[1]["content"])
        for document in (
            {"static": {}},
            {"gpu": {}},
            {"gpu": {"devices": [], "nccl_topology": None}},
        ):
            drive.write_text(json.dumps(document))
            subprocess.run(arguments, check=True)
            self.assertFalse(target.exists())
        drive.write_text(json.dumps({"gpu": {"nccl_topology": "<system/>"}}))
        subprocess.run(arguments, check=True)
        self.assertEqual("<system/>", target.read_text())
