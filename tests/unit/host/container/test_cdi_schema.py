# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest
from typing import Any

from nova_gpu.host.container import cdi_schema


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


class TestDocuments(unittest.TestCase):
    VALID: tuple[tuple[str, dict[str, Any]], ...] = (
        ("0.3.0", document("0.3.0")),
        ("0.8.0", document("0.8.0")),
        ("1.1.0", document("1.1.0")),
        ("leading v", document("v0.6.0")),
        ("edits that are empty, for all", edits()),
        ("mount with a type", mount("0.4.0", type="none")),
        ("mount with an empty type", mount("0.3.0", type="")),
        ("host path", node("0.5.0", hostPath="/dev/x")),
        ("annotations", document("0.6.0", annotations={"a": "b"})),
        ("no annotations", document("0.3.0", annotations={})),
        ("groups", edits("0.7.0", additionalGids=[44])),
        ("cache monitoring", edits("0.7.0", intelRdt={"enableCMT": True})),
        ("no permissions", node(permissions="none")),
        ("timeout", hook(timeout=1)),
        ("value with an equals sign", edits(env=["A=b=c"])),
        ("network device", edits(netDevices=[{"hostInterfaceName": "eth0", "name": "eth1"}])),
        ("newer minor version", document("1.2.0")),
        ("patch and build", document("v1.12.3-rc.1+abc")),
        ("field of a later version", edits("0.6.0", additionalGids=[44])),
        ("field that is gone", edits(intelRdt={"enableMBM": True})),
        ("device without effect", device(containerEdits={})),
        ("hook of another name", hook(hookName="startVM")),
    )
    # Each with a word of its fault
    INVALID: tuple[tuple[str, Any, str], ...] = (
        ("nothing", None, "None"),
        ("a list", [], "object"),
        ("newer major version", document("2.0.0"), "newer major version"),
        ("no version", document("1.1"), "not a version"),
        ("version and a line end", document("1.1.0\n"), "not a version"),
        ("too old a version", document("0.2.0"), "cdiVersion"),
        ("number for a version", document(0.5), "cdiVersion"),  # type: ignore[arg-type]
        ("no kind", {"cdiVersion": "0.3.0", "devices": []}, "kind"),
        ("kind without class", document(kind="vendor.com"), "kind"),
        ("kind of three parts", document(kind="v/c/d"), "kind"),
        ("long class", document(kind="v/" + "c" * 64), "kind"),
        ("kind and a line end", document(kind="v/c\n"), "kind"),
        ("unknown field", document(extra=1), "extra"),
        ("no devices", document(devices=[]), "devices"),
        ("device name", device(name="-gpu"), "devices/0/name"),
        ("device name as number", device(name=0), "devices/0/name"),
        ("two devices of one name", document(devices=document()["devices"] * 2), "gpu0"),
        ("edits as list", document(containerEdits=[]), "containerEdits"),
        ("unknown edit", edits(devices=[]), "devices"),
        ("env without name", edits(env=["=1"]), "env/0"),
        ("env without value", edits(env=["A"]), "env/0"),
        ("control character", edits(env=["A=\x00"]), "env/0"),
        ("relative path", node(path="dev/gpu0"), "deviceNodes/0/path"),
        ("type of a node", node(type="x"), "deviceNodes/0/type"),
        ("permissions", node(permissions="rwx"), "permissions"),
        ("uid", node(uid=-1), "uid"),
        ("mount without source", edits(mounts=[{"containerPath": "/b"}]), "hostPath"),
        ("options as text", mount(options="ro"), "options"),
        ("hook name", hook(hookName="a\x00"), "hookName"),
        ("hook path", hook(path="hook"), "hooks/0/path"),
        ("hook timeout", hook(timeout=0), "timeout"),
    )

    def test_no_fault(self) -> None:
        for name, whole in self.VALID:
            with self.subTest(name):
                self.assertIsNone(cdi_schema.fault(whole))

    def test_fault_names_it(self) -> None:
        for name, whole, word in self.INVALID:
            with self.subTest(name):
                self.assertIn(word, cdi_schema.fault(whole) or "")


class TestKnown(unittest.TestCase):
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
