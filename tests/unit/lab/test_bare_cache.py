# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.bare import cli


class CacheTest(testtools.TestCase):
    """What is kept becomes root's programs: nobody else may write there."""

    def setUp(self) -> None:
        super().setUp()
        out = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", out))
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "cache"

    def used(self) -> bool:
        with cli.safe_cache(self.folder) as cache:
            (cache / "file").touch()
        return (self.folder / "file").exists()

    def test_made_where_it_is_not(self) -> None:
        self.assertTrue(self.used())

    def test_others_may_write(self) -> None:
        self.folder.mkdir()
        self.folder.chmod(0o777)
        self.assertFalse(self.used())

    def test_cannot_be_made(self) -> None:
        self.folder.touch()
        with cli.safe_cache(self.folder) as cache:
            self.assertNotEqual(self.folder, cache)
