# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import extensions, json_text, names


class LoadTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        extensions._points.cache_clear()
        self.addCleanup(extensions._points.cache_clear)

    def install(self, name: str, *points: str, group: str = "nova_gpu.words") -> None:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        folder = root / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *points]))
        self.useFixture(fixtures.PythonPathEntry(str(root)))

    def test_all_that_are_installed_in_order_of_their_names(self) -> None:
        self.install("nova-gpu-two", "c = nova_gpu.core.json_text")
        self.install("other", "a = nova_gpu.core.names:STATS")
        self.install("third", "b = nova_gpu.core.names", group="nova_gpu.others")
        self.assertEqual([names.STATS, json_text], extensions.load("nova_gpu.words"))
        self.assertEqual([], extensions.load("nova_gpu.none"))

    def test_of_two_with_the_same_name_the_first_on_the_path(self) -> None:
        self.install("nova-gpu-two", "a = nova_gpu.core.names")
        self.install("nova-gpu-two", "c = nova_gpu.gone")
        self.assertEqual([names], extensions.load("nova_gpu.words"))

    def test_one_that_is_broken_is_not_taken_for_one_that_is_not_there(self) -> None:
        self.install("nova-gpu-two", "c = nova_gpu.gone")
        self.assertRaises(ModuleNotFoundError, extensions.load, "nova_gpu.words")
