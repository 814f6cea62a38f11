# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import tempfile
import unittest

from nova import objects
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel

from nova_gpu.api import vendordata
from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.licence.api import vgpu_licence
from tests.fixtures.compute import resources

PROJECT = "0123456789abcdef0123456789abcdef"


def vgpu(slot: str) -> objects.Resource:
    return objects.Resource(
        provider_uuid=uuidsentinel.provider,
        resource_class=names.VGPU_RESOURCE_CLASS,
        identifier=slot,
    )


def instance(
    slot: str = "0000:3b:00.4/nvidia-1155/0", project: str = PROJECT, **extra_specs: str
) -> objects.Instance:
    had = objects.ResourceList(objects=[vgpu(slot)])
    return objects.Instance(
        uuid=uuidsentinel.instance,
        project_id=project,
        resources=had,
        system_metadata={},
        flavor=objects.Flavor(extra_specs=extra_specs),
    )


class LicenceTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        config = config_fixture.Config(CONF)
        config.setUp()
        self.addCleanup(config.cleanUp)
        config.config(group="gpu", vgpu_licences=str(self.folder))
        self.config = config

    def put(self, name: str, text: str | bytes = "", mode: int = 0o640) -> pathlib.Path:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return path

    def assertRefused(self, reason: str, project: str = PROJECT) -> None:
        with self.assertLogs(vgpu_licence.LOG.logger, "WARNING") as logs:
            self.assertEqual({}, vendordata.of_instance(instance(project=project)))
        self.assertIn(reason, logs.output[0])
        self.assertNotIn("eyJ", logs.output[0])

    def test_of_its_project(self) -> None:
        self.put("default.tok", "eyJ.all")
        self.put("default.conf", "FeatureType=1\n")
        everybodys = {"token": "eyJ.all", "gridd_conf": "FeatureType=1\n"}
        self.assertEqual({"vgpu_licence": everybodys}, vendordata.of_instance(instance()))
        own = self.put(f"{PROJECT}.tok", "eyJ.own")
        self.assertEqual(
            {"vgpu_licence": everybodys | {"token": "eyJ.own"}}, vendordata.of_instance(instance())
        )
        own.write_text("eyJ.next")  # it is read anew each time
        self.assertEqual("eyJ.next", vgpu_licence.of_instance(instance())["vgpu_licence"]["token"])
        other = vgpu_licence.of_instance(instance(project="f" * 32))
        self.assertEqual({"vgpu_licence": everybodys}, other)

    def test_for_nvidias_alone(self) -> None:
        self.put("default.tok", "eyJ")
        whole, none = instance(), instance()
        whole.resources = resources((uuidsentinel.provider, "0000:3b:00.0"))
        none.resources = None
        mig, plain = instance("0000:3b:00.0/1g.18gb/900"), instance("0000:3b:00.1/vf/0")
        for other in (whole, none, mig, plain, instance("0000:00:02.0/i915-GVTg_V5_4/0")):
            with self.subTest(other.resources):
                self.assertEqual({}, vendordata.of_instance(other))
        # Whole cards have settings of their own.
        self.put("default.conf", "FeatureType=1\n")
        self.assertEqual({}, vendordata.of_instance(whole))
        self.put(f"{PROJECT}.whole.conf", "FeatureType=4\n")
        for item, number in ((whole, 4), (instance(), 1)):
            licence = {"token": "eyJ", "gridd_conf": f"FeatureType={number}\n"}
            self.assertEqual({"vgpu_licence": licence}, vendordata.of_instance(item))
        # A flavor may name others, for both kinds.
        for item in (whole, named := instance(**{"gpu:licence": "vws"})):
            item.flavor = named.flavor
            self.assertEqual({}, vendordata.of_instance(item))
        self.put("default.vws.conf", "FeatureType=2\n")
        for item in (whole, named):
            licence = {"token": "eyJ", "gridd_conf": "FeatureType=2\n"}
            self.assertEqual({"vgpu_licence": licence}, vendordata.of_instance(item))
        named.flavor.extra_specs["gpu:licence"] = "../../nova"
        self.assertEqual({}, vendordata.of_instance(named))
        self.config.config(group="gpu", vgpu_licences=None)
        self.assertEqual({}, vendordata.of_instance(instance()))

    def test_without_a_file(self) -> None:
        with self.assertLogs(vgpu_licence.LOG.logger, "INFO") as logs:
            self.assertEqual({}, vendordata.of_instance(instance()))
        self.assertIn(f"put {PROJECT}.tok or default.tok into {self.folder}", logs.output[0])

    def test_a_file_that_cannot_be_used(self) -> None:
        """Another licence than the project's own does not replace it."""
        self.put("default.tok", "eyJ.all")
        for text, mode, reason in (
            ("eyJ", 0o644, "other users have access to it (mode 644)"),
            ("eyJ", 0o602, "other users have access to it (mode 602)"),
            (b"\xffeyJ", 0o600, "it is not UTF-8"),
            (" \n", 0o600, "it is empty"),
            ("eyJ" * 30_000, 0o600, "it has more than 65536 bytes"),
        ):
            with self.subTest(reason):
                path = self.put(f"{PROJECT}.tok", text, mode)
                self.assertRefused(f"{path} cannot be used: {reason}. It must be a text file")
        path.unlink()
        path.mkdir()
        self.assertRefused("Is a directory")
        path.rmdir()
        os.mkfifo(path, 0o600)  # which no process writes to
        self.assertRefused("it is not a regular file")

    def test_a_project_that_is_no_name(self) -> None:
        outside = self.folder / "outside"
        outside.mkdir()
        self.put("secret.tok", "eyJ")
        self.put("default.tok", "eyJ.all")
        self.config.config(group="gpu", vgpu_licences=str(outside))
        for project in ("../secret", str(self.folder / "secret"), "", ".", "a\n", "a" * 65, "a\0"):
            with self.subTest(project):
                self.assertRefused("can be no part of a file's name", project)
