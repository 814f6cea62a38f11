# SPDX-License-Identifier: Apache-2.0
"""What is carried to a machine without a network."""

from __future__ import annotations

import pathlib
from unittest import mock

import fixtures
from oslotest import base

from tests.gpu import wheels
from tools import environments


class NeededTest(base.BaseTestCase):
    def test_all_that_the_suite_imports(self) -> None:
        found = wheels.needed(wheels.listed(), "3.12")
        self.assertLessEqual(
            {"nova", "nvidia-ml-py", "lxml", "oslo-config", "oslo-utils", "pip", "testtools"},
            found.keys(),
        )
        # Compiled on a machine with libvirt, and large
        self.assertEqual(set(), {"libvirt-python", "numpy", "setuptools"} & found.keys())

    def test_what_is_for_other_pythons_only(self) -> None:
        old = wheels.needed(["redis; python_full_version < '3.11.3'"], "3.11")
        self.assertEqual({}, old)

    def test_not_installed_here(self) -> None:
        with self.assertRaisesRegex(wheels.Failed, "no-such-thing is not installed here"):
            wheels.needed(["no-such-thing>=1"], "3.12")


class FetchTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.asked: list[tuple[str, ...]] = []
        self.tags = {"ovs": "py3-none-any"}
        self.useFixture(fixtures.MonkeyPatch("tests.gpu.wheels._pip", self.pip))

    def pip(self, verb: str, *arguments: str) -> str | None:
        """The index has no wheel of ovs."""
        self.asked.append((verb, arguments[-1]))
        if verb == "download" and "ovs==1" in arguments:
            return "ERROR: No matching distribution found for ovs==1\n"
        if arguments[-1] == "ovs==1":
            (self.folder / f"ovs-1-{self.tags['ovs']}.whl").touch()
        return None

    def test_what_has_no_wheel_is_built(self) -> None:
        wheels.fetch(self.folder, {"nova": "34", "ovs": "1"}, "3.12")
        own = ("wheel", str(environments.ROOT))
        expected = [("download", "ovs==1"), ("download", "nova==34"), own, ("wheel", "ovs==1")]
        self.assertEqual(expected, self.asked)

    def test_what_is_built_is_for_every_python(self) -> None:
        self.tags["ovs"] = "cp311-cp311-linux_x86_64"
        with self.assertRaisesRegex(wheels.Failed, "fits this Python only"):
            wheels.fetch(self.folder, {"nova": "34", "ovs": "1"}, "3.12")

    def test_no_index(self) -> None:
        with (
            mock.patch.object(wheels, "_pip", lambda *_: "Connection refused"),
            self.assertRaisesRegex(wheels.Failed, "Connection refused"),
        ):
            wheels.fetch(self.folder, {"nova": "34"}, "3.12")
