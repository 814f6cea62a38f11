# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core import container, exception
from nova_gpu.host.container import cdi
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

    def devices(self) -> dict[str, cdi.Device]:
        return dict(cdi.find(self.folders, UID).devices)


class TestLoad(CDITestCase):
    def test_as_nvidia_ctk_writes_it(self) -> None:
        path = self.save("etc/nvidia.yaml", fake.nvidia(self.root / "driver", [0, 1]))
        by_name = {device.name: device for device in cdi.load(path, UID)}
        self.assertEqual(
            {f"nvidia.com/gpu={name}" for name in ("0", "GPU-0abc", "1", "GPU-1abc", "all")},
            by_name.keys(),
        )
        edits = by_name["nvidia.com/gpu=1"].edits
        self.assertEqual(
            ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia1"],
            [node.path for node in edits.nodes[:4]],
        )
        self.assertIn(("NVIDIA_VISIBLE_DEVICES", "void"), edits.env)
        library = f"{fake.LIBDIR}/libcuda.so.{fake.VERSION}"
        self.assertIn(container.Mount(f"{self.root}/driver{library}", library), edits.mounts)
        self.assertEqual(
            (
                ("libcuda.so.1", f"{fake.LIBDIR}/libcuda.so"),
                (f"libGLX_nvidia.so.{fake.VERSION}", f"{fake.LIBDIR}/libGLX_indirect.so.0"),
                ("../libnvidia-allocator.so.1", f"{fake.LIBDIR}/gbm/nvidia-drm_gbm.so"),
            ),
            edits.links,
        )

    def test_other_hooks_leave_no_trace(self) -> None:
        hooks = [
            {"hookName": "prestart", "path": "/bin/evil", "args": ["evil", "--link", "a::/b"]},
            {"hookName": "prestart", "path": "/bin/evil"},
        ]
        path = self.save("etc/a.json", document(hooks=hooks))
        self.assertEqual(cdi.Edits(), cdi.load(path, UID)[0].edits)


class TestRefusal(CDITestCase):
    def refused(self, path: pathlib.Path, word: str, owner_uid: int = UID) -> None:
        error = self.assertRaises(exception.InvalidCDISpec, cdi.load, path, owner_uid)
        self.assertIn(word, str(error))
        self.assertIn(str(path), str(error))

    def write(self, name: str, text: str) -> pathlib.Path:
        fake.write(self.root / name, text.encode())
        return self.root / name

    def test_what_cannot_be_parsed(self) -> None:
        self.refused(self.write("etc/a.json", "{"), "parsed")
        self.refused(self.write("etc/a.yaml", "a: ["), "parsed")
        self.refused(self.write("etc/b.yaml", ""), "None")
        self.refused(self.write("etc/c.yaml", "--- {}\n--- {}\n"), "parsed")
        self.refused(self.write("etc/d.yaml", "!!python/object/apply:os.getpid []"), "parsed")
        self.refused(self.write("etc/e.json", "[" * 100_000), "parsed")

    def test_a_key_that_is_there_twice(self) -> None:
        self.refused(self.write("etc/a.json", '{"kind": "a/b", "kind": "a/c"}'), "'kind'")
        self.refused(self.write("etc/a.yaml", "devices:\n- name: a\n  name: b\n"), "'name'")

    def test_a_yaml_alias_that_leads_to_itself(self) -> None:
        self.refused(self.write("etc/a.yaml", "&a [*a]"), "YAML aliases contains itself")

    def test_everybody_could_have_written_it(self) -> None:
        path = self.save("etc/a.json", document())
        path.chmod(0o646)
        self.refused(path, "0646")

    def test_a_link_that_leads_nowhere(self) -> None:
        (self.root / "etc/a.json").symlink_to("nowhere")
        self.refused(self.root / "etc/a.json", "No such file")


class TestDevices(CDITestCase):
    def test_a_newer_minor_version_is_read_with_one_warning(self) -> None:
        path = self.save("etc/a.yaml", document(env=["A=1"], later=1) | {"cdiVersion": "1.2.0"})
        for _ in range(3):
            self.assertEqual((("A", "1"),), self.devices()["vendor.com/gpu=gpu0"].edits.env)
        said = f"{path} has parts that nova-gpu does not know and ignores: cdiVersion 1.2.0, field"
        self.assertEqual(1, self.log.output.count(said))
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
        self.assertEqual((("FROM", "run"),), self.devices()["vendor.com/gpu=gpu0"].edits.env)

    def test_conflict_in_one_folder(self) -> None:
        for name in "abc":
            self.save(f"etc/{name}.yaml", document())
        self.save("etc/d.yaml", document("gpu1"))
        self.assertEqual({"vendor.com/gpu=gpu1"}, self.devices().keys())
        for name in "abc":
            self.assertIn(f"{self.root}/etc/{name}.yaml", self.log.output)

    def test_other_files_are_not_looked_at(self) -> None:
        self.save("etc/a.yml", document())
        self.save("etc/sub/a.yaml", document())
        fake.write(self.root / "etc/README", b"{")
        self.assertEqual({}, self.devices())
        self.assertEqual("", self.log.output)

    def test_no_folder(self) -> None:
        self.assertEqual({}, cdi.find([self.root / "nowhere"], UID).devices)
        self.assertEqual("", self.log.output)

    def test_a_folder_not_to_be_believed(self) -> None:
        self.save("etc/a.yaml", document())
        self.folders[0].chmod(0o777)
        self.assertEqual({}, self.devices())
        self.assertIn(f"CDI folder {self.folders[0]} is ignored", self.log.output)
        self.folders[0].chmod(0o755)
        self.assertEqual({}, cdi.find(self.folders, UID + 1).devices)
        self.assertEqual(1, len(self.devices()))


class TestDescribing(CDITestCase):
    def test_the_card_rather_than_all_cards(self) -> None:
        self.save("etc/nvidia.yaml", fake.nvidia(self.root / "driver", [0, 1]))
        device = cdi.describing(["/dev/nvidia1"], self.devices())
        self.assertEqual("nvidia.com/gpu=1", device and device.name)

    def test_any_of_its_nodes(self) -> None:
        self.save("etc/amd.json", fake.amd([1, 2]))
        device = cdi.describing(["/dev/dri/card9", "/dev/dri/renderD130"], self.devices())
        self.assertEqual("amd.com/gpu=1", device and device.name)

    def test_by_host_path(self) -> None:
        node = {"path": "/dev/gpu0", "hostPath": "/dev/nvidia0"}
        self.save("etc/a.json", document(deviceNodes=[node]))
        device = cdi.describing(["/dev/nvidia0"], self.devices())
        self.assertEqual("vendor.com/gpu=gpu0", device and device.name)
