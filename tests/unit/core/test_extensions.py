# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import extensions


class LoadTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.PythonPathEntry(str(self.root)))

    def test_a_guest_that_is_not(self) -> None:
        self.assertIsNone(extensions.load("nova_gpu.no_such_guest.door"))

    def test_a_folder_with_compiled_modules_alone(self) -> None:
        (self.root / "left_over" / "lodger" / "__pycache__").mkdir(parents=True)
        (self.root / "left_over" / "__init__.py").touch()
        self.assertIsNone(extensions.load("left_over.lodger.door"))

    def test_a_guest_that_is_broken(self) -> None:
        """Not taken for one that is not there."""
        self.assertRaises(ModuleNotFoundError, extensions.load, "nova_gpu.core.no_such_module")
