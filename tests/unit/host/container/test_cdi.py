# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import pathlib
import unittest
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.host.container import cdi, cdi_schema
from tests.fixtures import cdi as fake

UID = os.getuid()


def document(name: str = "gpu0", **edits: Any) -> dict[str, Any]:
    one = {"name": name, "containerEdits": edits or {"env": ["A=1"]}}
    return {"cdiVersion": "1.1.0", "kind": "vendor.com/gpu", "devices": [one]}


class CDITestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.folders = (self.root / "etc", self.root / "run")
        for folder in self.folders:
            folder.mkdir()

    def save(self, name: str, content: Any) -> pathlib.Path:
        path = self.root / name
        fake.save(path, content)
        return path

    def devices(self) -> dict[str, cdi.CdiDevice]:
        return dict(cdi.find(self.folders, UID).devices)


class TestLoad(CDITestCase):
    def test_other_hooks_leave_no_trace(self) -> None:
        hooks = [
            {"hookName": "prestart", "path": "/bin/evil", "args": ["evil", "--link", "a::/b"]},
            {"hookName": "prestart", "path": "/bin/evil"},
        ]
        path = self.save("etc/a.json", document(hooks=hooks))
        self.assertEqual(cdi.Edits(), cdi.load(path, UID)[0].edits)

    def refused(self, name: str, text: str, word: str, mode: int = 0o644) -> None:
        path = self.root / name
        fake.write(path, text.encode())
        path.chmod(mode)
        error = self.assertRaises(exception.InvalidCDISpec, cdi.load, path, UID)
        self.assertIn(word, str(error))
        self.assertIn(str(path), str(error))

    def test_refused(self) -> None:
        self.refused("etc/a.json", '{"kind": "a/b", "kind": "a/c"}', "'kind'")
        self.refused("etc/a.yaml", "devices:\n- name: a\n  name: b\n", "'name'")
        self.refused("etc/c.yaml", "!!python/object/apply:os.getpid []", "parsed")
        self.refused("etc/d.yaml", "&a [*a]", "YAML aliases contains itself")
        self.refused("etc/b.json", json.dumps(document()), "0646", 0o646)


class TestDevices(CDITestCase):
    def test_a_newer_minor_version_is_read_with_one_warning(self) -> None:
        path = self.save("etc/a.yaml", document(env=["A=1"], later=1) | {"cdiVersion": "1.2.0"})
        for _ in range(3):
            self.assertEqual((("A", "1"),), self.devices()["vendor.com/gpu=gpu0"].edits.env)
        message = (
            f"{path} has parts that nova-gpu does not know and ignores: cdiVersion 1.2.0, field"
        )
        self.assertEqual(1, self.log.output.count(message))
        self.assertEqual(1, self.log.output.count("\n"))

    def test_what_may_describe_a_card(self) -> None:
        newer = document(deviceNodes=[{"path": "/dev/gpu1"}]) | {"cdiVersion": "2.0.0"}
        path = self.save("etc/a.json", newer)
        (ignored,) = cdi.find(self.folders, UID).ignored
        self.assertEqual(path, ignored.path)
        self.assertIn("newer major version", ignored.reason)
        self.assertTrue(ignored.may_describe(["/dev/gpu9", "/dev/gpu1"]))
        self.assertFalse(ignored.may_describe(["/dev/gpu"]))
        path.write_bytes(b"\xff")
        (ignored,) = cdi.find(self.folders, UID).ignored
        self.assertTrue(ignored.may_describe(["/dev/gpu"]), "what it has is not known")

    def test_a_bad_file_is_named_and_ignored_alone(self) -> None:
        self.save("etc/good.yaml", document("good"))
        bad = self.save("etc/bad.yaml", document("bad", env=1))
        self.assertEqual({"vendor.com/gpu=good"}, self.devices().keys())
        self.assertIn(f"CDI file {bad} is ignored", self.log.output)

    def test_later_folders_over_earlier_ones(self) -> None:
        self.save("etc/a.yaml", document(env=["FROM=etc"]))
        self.save("run/a.yaml", document(env=["FROM=run"]))
        for other in ("etc/a.yml", "etc/sub/a.yaml", "etc/README"):  # not looked at
            fake.write(self.root / other, b"{")
        self.assertEqual((("FROM", "run"),), self.devices()["vendor.com/gpu=gpu0"].edits.env)
        self.assertEqual({}, cdi.find([self.root / "nowhere"], UID).devices)
        self.assertEqual("", self.log.output)

    def test_conflict_in_one_folder(self) -> None:
        for name in "abc":
            self.save(f"etc/{name}.yaml", document())
        self.save("etc/d.yaml", document("gpu1"))
        self.assertEqual({"vendor.com/gpu=gpu1"}, self.devices().keys())
        for name in "abc":
            self.assertIn(f"{self.root}/etc/{name}.yaml", self.log.output)

    def test_a_folder_not_to_be_believed(self) -> None:
        self.save("etc/a.yaml", document())
        self.folders[0].chmod(0o777)
        self.assertEqual({}, self.devices())
        self.assertIn(f"CDI folder {self.folders[0]} is ignored", self.log.output)
        self.folders[0].chmod(0o755)
        self.assertEqual({}, cdi.find(self.folders, UID + 1).devices)
        self.assertEqual(1, len(self.devices()))


def minimal(version: str = "0.3.0", **changes: Any) -> dict[str, Any]:
    """A minimal specification with *changes* at its top"""
    device = {"name": "gpu0", "containerEdits": {"env": ["A=1"]}}
    return {"cdiVersion": version, "kind": "vendor.com/gpu", "devices": [device], **changes}


def edits(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return minimal(version, containerEdits=fields)


def device(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    one = {"name": "gpu0", "containerEdits": {"env": ["A=1"]}, **fields}
    return minimal(version, devices=[one])


def hook(**fields: Any) -> dict[str, Any]:
    return edits(hooks=[{"hookName": "prestart", "path": "/hook", **fields}])


def node(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return edits(version, deviceNodes=[{"path": "/dev/gpu0", **fields}])


def mount(version: str = "1.1.0", **fields: Any) -> dict[str, Any]:
    return edits(version, mounts=[{"hostPath": "/a", "containerPath": "/b", **fields}])


class TestDocuments(unittest.TestCase):
    VALID: tuple[tuple[str, dict[str, Any]], ...] = (
        ("0.3.0", minimal("0.3.0")),
        ("1.1.0", minimal("1.1.0")),
        ("leading v", minimal("v0.6.0")),
        ("edits that are empty, for all", edits()),
        ("mount with a type", mount("0.4.0", type="none")),
        ("host path", node("0.5.0", hostPath="/dev/x")),
        ("annotations", minimal("0.6.0", annotations={"a": "b"})),
        ("groups", edits("0.7.0", additionalGids=[44])),
        ("no permissions", node(permissions="none")),
        ("timeout", hook(timeout=1)),
        ("value with an equals sign", edits(env=["A=b=c"])),
        ("newer minor version", minimal("1.2.0")),
        ("field of a later version", edits("0.6.0", additionalGids=[44])),
        ("field that is gone", edits(intelRdt={"enableMBM": True})),
        ("device without effect", device(containerEdits={})),
        ("hook of another name", hook(hookName="startVM")),
    )
    # Each with a word of its fault
    INVALID: tuple[tuple[str, Any, str], ...] = (
        ("nothing", None, "None"),
        ("newer major version", minimal("2.0.0"), "newer major version"),
        ("version and a line end", minimal("1.1.0\n"), "not a version"),
        ("too old a version", minimal("0.2.0"), "cdiVersion"),
        ("number for a version", minimal(0.5), "cdiVersion"),  # type: ignore[arg-type]
        ("no kind", {"cdiVersion": "0.3.0", "devices": []}, "kind"),
        ("kind without class", minimal(kind="vendor.com"), "kind"),
        ("kind and a line end", minimal(kind="v/c\n"), "kind"),
        ("unknown field", minimal(extra=1), "extra"),
        ("no devices", minimal(devices=[]), "devices"),
        ("device name", device(name="-gpu"), "devices/0/name"),
        ("two devices of one name", minimal(devices=minimal()["devices"] * 2), "gpu0"),
        ("unknown edit", edits(devices=[]), "devices"),
        ("env without name", edits(env=["=1"]), "env/0"),
        ("env without value", edits(env=["A"]), "env/0"),
        ("control character", edits(env=["A=\x00"]), "env/0"),
        ("relative path", node(path="dev/gpu0"), "deviceNodes/0/path"),
        ("type of a node", node(type="x"), "deviceNodes/0/type"),
        ("permissions", node(permissions="rwx"), "permissions"),
        ("mount without source", edits(mounts=[{"containerPath": "/b"}]), "hostPath"),
        ("hook name", hook(hookName="a\x00"), "hookName"),
        ("hook path", hook(path="hook"), "hooks/0/path"),
    )

    def test_no_fault(self) -> None:
        for name, whole in self.VALID:
            with self.subTest(name):
                self.assertIsNone(cdi_schema.fault(whole))

    def test_fault_names_it(self) -> None:
        for name, whole, word in self.INVALID:
            with self.subTest(name):
                self.assertIn(word, cdi_schema.fault(whole) or "")
