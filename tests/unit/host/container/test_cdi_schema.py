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
    )
    document: dict[str, Any]

    def test_no_fault(self) -> None:
        self.assertIsNone(cdi_schema.fault(self.document))


class TestInvalid(base.BaseTestCase):
    scenarios = (
        ("nothing", {"document": None, "word": "None"}),
        ("a list", {"document": [], "word": "object"}),
        ("unknown version", {"document": document("2.0.0"), "word": "cdiVersion"}),
        ("too old a version", {"document": document("0.2.0"), "word": "cdiVersion"}),
        ("number for a version", {"document": document(0.5), "word": "cdiVersion"}),  # type: ignore[arg-type]
        ("no kind", {"document": {"cdiVersion": "0.3.0", "devices": []}, "word": "kind"}),
        ("kind without class", {"document": document(kind="vendor.com"), "word": "kind"}),
        ("kind of three parts", {"document": document(kind="v/c/d"), "word": "kind"}),
        ("long class", {"document": document(kind="v/" + "c" * 64), "word": "kind"}),
        ("kind and a line end", {"document": document(kind="v/c\n"), "word": "kind"}),
        ("unknown field", {"document": document(extra=1), "word": "extra"}),
        ("no devices", {"document": document(devices=[]), "word": "devices"}),
        ("device without effect", {"document": device(containerEdits={}), "word": "devices/0"}),
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
        ("hook name", {"document": hook(hookName="never"), "word": "hookName"}),
        ("hook path", {"document": hook(path="hook"), "word": "hooks/0/path"}),
        ("hook timeout", {"document": hook(timeout=0), "word": "timeout"}),
        # Each feature one version before the one it came in.
        ("early mount type", {"document": mount("0.3.0", type="none"), "word": "0.4.0"}),
        ("early host path", {"document": node("0.4.0", hostPath="/dev/x"), "word": "0.5.0"}),
        ("early digit", {"document": device("0.4.0", name="0"), "word": "0.5.0"}),
        ("early dot", {"document": document("0.5.0", kind="v/c.d"), "word": "0.6.0"}),
        (
            "early annotations",
            {"document": document("0.5.0", annotations={"a": "b"}), "word": "0.6.0"},
        ),
        (
            "early annotations of a device",
            {"document": device("0.5.0", annotations={"a": "b"}), "word": "0.6.0"},
        ),
        ("early groups", {"document": edits("0.6.0", additionalGids=[44]), "word": "0.7.0"}),
        ("early rdt", {"document": edits("0.6.0", intelRdt={}), "word": "0.7.0"}),
        (
            "early rdt schemata",
            {"document": edits("1.0.0", intelRdt={"schemata": []}), "word": "1.1.0"},
        ),
        (
            "early network device",
            {
                "document": edits("1.0.0", netDevices=[{"hostInterfaceName": "a", "name": "b"}]),
                "word": "1.1.0",
            },
        ),
        (
            "late cache monitoring",
            {"document": edits(intelRdt={"enableMBM": True}), "word": "gone"},
        ),
        (
            "early feature of a device",
            {
                "document": device("0.6.0", containerEdits={"additionalGids": [44]}),
                "word": "0.7.0",
            },
        ),
    )
    document: Any
    word: str

    def test_fault_names_it(self) -> None:
        fault = cdi_schema.fault(self.document)
        self.assertIsNotNone(fault)
        self.assertIn(self.word, fault or "")
