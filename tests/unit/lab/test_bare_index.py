# SPDX-License-Identifier: Apache-2.0
"""Asked by pip, with an index of generated files behind it."""

from __future__ import annotations

import functools
import hashlib
import http.server
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile

import fixtures
import testtools

from lab.bare import index
from lab.bare.store import Store

_WHEEL = "thing-1.0-py3-none-any.whl"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


class IndexTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.behind = self.folder / "behind"
        (self.behind / "simple/thing").mkdir(parents=True)
        (self.behind / "files").mkdir()
        self.wheel = self.behind / "files" / _WHEEL
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("thing.py", "")
            metadata = "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
            archive.writestr("thing-1.0.dist-info/METADATA", metadata)
            archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr("thing-1.0.dist-info/RECORD", "")
        self.digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.page(f"../../files/{_WHEEL}#sha256={self.digest}")
        handler = functools.partial(_Quiet, directory=str(self.behind))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.store = Store(self.folder / "wheels")
        upstream = index.Upstream((f"http://127.0.0.1:{server.server_address[1]}/simple/",))
        serving = index.serving(upstream, self.store)
        self.served = serving.__enter__()
        (self.address,) = self.served.addresses
        self.addCleanup(serving.__exit__, None, None, None)

    def page(self, link: str) -> None:
        text = f'<a href="{link}" data-requires-python="&gt;=3" data-core-metadata="x">{_WHEEL}</a>'
        (self.behind / "simple/thing/index.html").write_text(f"<html><body>{text}</body></html>")

    def pip(self, into: str) -> subprocess.CompletedProcess[str]:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "download",
            "--no-deps",
            "--no-cache-dir",
        ]
        argv += ["--retries", "0", "--index-url", self.address, "--dest", str(self.folder / into)]
        return subprocess.run([*argv, "thing"], capture_output=True, text=True, check=False)

    def test_a_file_is_fetched_once(self) -> None:
        ran = self.pip("first")
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.wheel.unlink()
        ran = self.pip("second")
        self.assertEqual(0, ran.returncode, ran.stderr)
        self.assertEqual([_WHEEL], self.served.fetched)
        kept = (self.folder / "second" / _WHEEL).read_bytes()
        self.assertEqual(self.digest, hashlib.sha256(kept).hexdigest())

    def test_what_was_changed_is_fetched_again(self) -> None:
        ran = self.pip("first")
        self.assertEqual(0, ran.returncode, ran.stderr)
        kept = self.store.find(_WHEEL)
        assert kept
        kept.write_bytes(b"x")
        ran = self.pip("second")
        self.assertEqual(0, ran.returncode, ran.stderr)

    def test_another_file_of_the_name(self) -> None:
        ran = self.pip("first")
        self.assertEqual(0, ran.returncode, ran.stderr)
        with zipfile.ZipFile(self.wheel, "a") as archive:
            archive.writestr("more.py", "")
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.page(f"../../files/{_WHEEL}#sha256={digest}")
        ran = self.pip("second")
        self.assertEqual(0, ran.returncode, ran.stderr)
        got = (self.folder / "second" / _WHEEL).read_bytes()
        self.assertEqual(digest, hashlib.sha256(got).hexdigest())

    def test_not_what_the_index_says(self) -> None:
        self.wheel.write_bytes(b"x")
        self.assertNotEqual(0, self.pip("first").returncode)
        self.assertIsNone(self.store.find(_WHEEL))

    def test_unknown(self) -> None:
        for path in ("/0/other/", "/1/thing/", "/file/x/y/z", "/"):
            url = self.address.rpartition("/")[0] + path
            error = self.assertRaises(urllib.error.HTTPError, urllib.request.urlopen, url)
            self.assertEqual(404, error.code)


class PageTest(testtools.TestCase):
    def test_without_a_digest(self) -> None:
        """It stays where it is."""
        text = index.page('<a href="../a-1.tar.gz">a-1.tar.gz</a>', "https://one.test/simple/a/")
        self.assertIn('href="https://one.test/simple/a-1.tar.gz"', text)

    def test_what_python_it_is_for(self) -> None:
        link = f'<a href="/a-1.tar.gz#sha256={"0" * 64}" data-requires-python="&gt;=3.12">a</a>'
        text = index.page(link, "https://one.test/simple/a/")
        self.assertIn('data-requires-python="&gt;=3.12"', text)
        self.assertIn(f'href="/file/{"0" * 64}/', text)
