# SPDX-License-Identifier: Apache-2.0
"""Of a generated folder, read by apt itself."""

from __future__ import annotations

import pathlib
import shutil

import fixtures
import testtools

from lab import packages, sources

_STANZAS = """\
Types: deb
URIs: mirror+file:///etc/apt/mirrors/debian.list
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
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

    def test_whatever_they_are_called(self) -> None:
        (self.parts / "0000mirror.sources").write_text(_STANZAS)
        (self.etc / "sources.list").write_text("deb http://one.test/ bookworm-security main\n")
        (self.parts / "others.list").write_text(_OTHERS)
        # apt reads none of these.
        (self.parts / "debian.sources.old").write_text(_STANZAS)
        (self.parts / "off.sources").write_text(f"Enabled: no\n{_STANZAS}")
        self.assertEqual(["sources.list", "sources.list.d/0000mirror.sources"], self.files())

    def test_without_any(self) -> None:
        (self.etc / "sources.list").write_text(_OTHERS)
        error = self.assertRaises(packages.MachineNotReady, self.files)
        self.assertIn("no source of Debian bookworm;", str(error))
