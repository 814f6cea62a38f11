# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import testscenarios
from oslotest import base

from nova_gpu.host.container import cdi_schema

load_tests = testscenarios.load_tests_apply_scenarios


def document(version: str = "0.3.0", **changes: Any) -> dict[str, Any]:
    """A minimal specification with *changes* at its top"""
    device = {"name": "gpu0", "containerEdits": {"env": ["A=1"]}}
    return {"cdiVersion": version, "kind": "vendor.com/gpu", "devices": [device], **changes}


def edits(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return document(version, containerEdits=fields)


def device(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    one = {"name": "gpu0", "containerEdits": {"env": ["A=1"]}, **fields}
    return document(version, devices=[one])


def hook(**fields: Any) -> dict[str, Any]:
    return edits(hooks=[{"hookName": "prestart", "path": "/hook", **fields}])


def node(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return edits(version, deviceNodes=[{"path": "/dev/gpu0", **fields}])


def mount(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return edits(version, mounts=[{"hostPath": "/a", "containerPath": "/b", **fields}])


class TestValid(base.BaseTestCase):
    scenarios = (
        ("0.3.0", {"document": document("0.3.0")}),
        ("0.8.0", {"document": document("0.8.0")}),
        ("1.1.0", {"document": document("1.1.0")}),
        ("leading v", {"document": document("v0.6.0")}),
        ("edits that are empty, for all", {"document": edits()}),
        ("mount with a type", {"document": mount("0.4.0", type="none")}),
        ("mount with an empty type", {"document": mount("0.3.0", type="")}),
        ("host path", {"document": node("0.5.0", hostPath="/dev/x")}),
        ("annotations", {"document": document("0.6.0", annotations={"a": "b"})}),
        ("no annotations", {"document": document("0.3.0", annotations={})}),
        ("groups", {"document": edits("0.7.0", additionalGids=[44])}),
        ("cache monitoring", {"document": edits("0.7.0", intelRdt={"enableCMT": True})}),
        ("no permissions", {"document": node(permissions="none")}),
        ("timeout", {"document": hook(timeout=1)}),
        ("value with an equals sign", {"document": edits(env=["A=b=c"])}),
        (
            "network device",
            {"document": edits(netDevices=[{"hostInterfaceName": "eth0", "name": "eth1"}])},
        ),
        ("newer minor version", {"document": document("1.2.0")}),
        ("patch and build", {"document": document("v1.12.3-rc.1+abc")}),
        ("field of a later version", {"document": edits("0.6.0", additionalGids=[44])}),
        ("field that is gone", {"document": edits(intelRdt={"enableMBM": True})}),
        ("device without effect", {"document": device(containerEdits={})}),
        ("hook of another name", {"document": hook(hookName="startVM")}),
    )
    document: dict[str, Any]

    def test_no_fault(self) -> None:
        self.assertIsNone(cdi_schema.fault(self.document))


class TestInvalid(base.BaseTestCase):
    scenarios = (
        ("nothing", {"document": None, "word": "None"}),
        ("a list", {"document": [], "word": "object"}),
        ("newer major version", {"document": document("2.0.0"), "word": "newer major version"}),
        ("no version", {"document": document("1.1"), "word": "not a version"}),
        ("version and a line end", {"document": document("1.1.0\n"), "word": "not a version"}),
        ("too old a version", {"document": document("0.2.0"), "word": "cdiVersion"}),
        ("number for a version", {"document": document(0.5), "word": "cdiVersion"}),  # type: ignore[arg-type]
        ("no kind", {"document": {"cdiVersion": "0.3.0", "devices": []}, "word": "kind"}),
        ("kind without class", {"document": document(kind="vendor.com"), "word": "kind"}),
        ("kind of three parts", {"document": document(kind="v/c/d"), "word": "kind"}),
        ("long class", {"document": document(kind="v/" + "c" * 64), "word": "kind"}),
        ("kind and a line end", {"document": document(kind="v/c\n"), "word": "kind"}),
        ("unknown field", {"document": document(extra=1), "word": "extra"}),
        ("no devices", {"document": document(devices=[]), "word": "devices"}),
        ("device name", {"document": device(name="-gpu"), "word": "devices/0/name"}),
        ("device name as number", {"document": device(name=0), "word": "devices/0/name"}),
        (
            "two devices of one name",
            {"document": document(devices=document()["devices"] * 2), "word": "gpu0"},
        ),
        ("edits as list", {"document": document(containerEdits=[]), "word": "containerEdits"}),
        ("unknown edit", {"document": edits(devices=[]), "word": "devices"}),
        ("env without name", {"document": edits(env=["=1"]), "word": "env/0"}),
        ("env without value", {"document": edits(env=["A"]), "word": "env/0"}),
        ("control character", {"document": edits(env=["A=\x00"]), "word": "env/0"}),
        ("relative path", {"document": node(path="dev/gpu0"), "word": "deviceNodes/0/path"}),
        ("type of a node", {"document": node(type="x"), "word": "deviceNodes/0/type"}),
        ("permissions", {"document": node(permissions="rwx"), "word": "permissions"}),
        ("uid", {"document": node(uid=-1), "word": "uid"}),
        (
            "mount without source",
            {"document": edits(mounts=[{"containerPath": "/b"}]), "word": "hostPath"},
        ),
        ("options as text", {"document": mount(options="ro"), "word": "options"}),
        ("hook name", {"document": hook(hookName="a\x00"), "word": "hookName"}),
        ("hook path", {"document": hook(path="hook"), "word": "hooks/0/path"}),
        ("hook timeout", {"document": hook(timeout=0), "word": "timeout"}),
    )
    document: Any
    word: str

    def test_fault_names_it(self) -> None:
        fault = cdi_schema.fault(self.document)
        self.assertIsNotNone(fault)
        self.assertIn(self.word, fault or "")


class TestKnown(base.BaseTestCase):
    def test_all(self) -> None:
        whole = node(hostPath="/dev/x")
        self.assertEqual((whole, []), cdi_schema.known(whole))

    def test_unknown_fields_go(self) -> None:
        whole = document("1.2.0", extra=1, containerEdits={"libraries": ["a"], "env": ["A=1"]})
        whole["devices"][0]["containerEdits"]["deviceNodes"] = [{"path": "/dev/x", "extra": {}}]
        known, unknown = cdi_schema.known(whole)
        assert isinstance(known, dict)
        self.assertIsNone(cdi_schema.fault(known))
        self.assertEqual({"env": ["A=1"]}, known["containerEdits"])
        nodes = known["devices"][0]["containerEdits"]["deviceNodes"]
        self.assertEqual([{"path": "/dev/x"}], nodes)
        said = ["cdiVersion 1.2.0", "field 'extra'", "field 'libraries'"]
        self.assertEqual(sorted(said), sorted(unknown))

    def test_what_is_no_specification(self) -> None:
        for value in (None, [], {1: 2}, {"devices": 5, "containerEdits": [1]}):
            self.assertIsNotNone(cdi_schema.fault(cdi_schema.known(value)[0]))
