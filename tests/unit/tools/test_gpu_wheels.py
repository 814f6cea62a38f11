# SPDX-License-Identifier: Apache-2.0
"""What is carried to a machine without a network."""

from __future__ import annotations

from oslotest import base

from tests.gpu import wheels


class NeededTest(base.BaseTestCase):
    def test_all_that_the_suite_imports(self) -> None:
        found = wheels.needed(wheels.listed(), "3.12")
        self.assertLessEqual(
            {"nova", "nvidia-ml-py", "lxml", "oslo-config", "oslo-utils", "pip", "testtools"},
            found.keys(),
        )
        # Compiled on a machine with libvirt, and large
        self.assertEqual(set(), {"libvirt-python", "numpy", "setuptools"} & found.keys())

    def test_not_installed_here(self) -> None:
        with self.assertRaisesRegex(wheels.Failed, "no-such-thing is not installed here"):
            wheels.needed(["no-such-thing>=1"], "3.12")
