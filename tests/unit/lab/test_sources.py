# SPDX-License-Identifier: Apache-2.0
"""Of a generated folder, read by apt itself."""

from __future__ import annotations

import pathlib
import shutil

import fixtures
import testtools

from lab import packages, sources

_OTHERS = """\
deb http://one.test/apt sdk-bookworm main
deb http://two.test/debian bookworm stable
# deb http://three.test/debian bookworm main
"""


class FilesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        if not shutil.which("apt-get"):
            self.skipTest("no apt-get on PATH: this is no Debian")
        self.etc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.parts = self.etc / "sources.list.d"
        self.parts.mkdir()
        self.options = ["-o", f"Dir::Etc={self.etc}", "-o", f"Dir::State::Lists={self.etc}/lists"]

    def files(self) -> list[str]:
        found = sources.files("bookworm", self.options)
        return sorted(str(path.relative_to(self.etc)) for path in found)

    def test_without_any(self) -> None:
        (self.etc / "sources.list").write_text(_OTHERS)
        error = self.assertRaises(packages.MachineNotReady, self.files)
        self.assertIn("no source of Debian bookworm;", str(error))
