# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import shutil

import fixtures
import testtools

from lab.bare import cli, given, index


class GivenTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def file(self, name: str, content: str = "") -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def test_pip_is_told_what_the_machines_is(self) -> None:
        files = (
            self.file("etc", "[global]\nindex-url = https://one.test/\ntimeout = 9\n"),
            self.file("home", "[install]\nindex-url = https://two.test/\nprefix = /opt\n"),
            self.file("broken", "index-url = https://three.test/\n"),
            self.folder / "none",
        )
        environ = {"PIP_TIMEOUT": "8", "PIP_TARGET": "/opt", "HOME": "/root"}
        variables = given.pip_variables(files, environ)
        self.assertEqual({"PIP_INDEX_URL": "https://two.test/", "PIP_TIMEOUT": "8"}, variables)

    def test_variables(self) -> None:
        environ = {
            "https_proxy": "http://p",
            "NO_PROXY": "x",
            "CI": "true",
            "CIRCLE": "1",
            "X": "y",
        }
        gives = given.by(environ, "", (), ())
        self.assertEqual({"https_proxy", "NO_PROXY", "CI"}, set(gives.variables))

    def test_what_is_named_comes_along(self) -> None:
        key, mirrors = self.file("apt/key.gpg"), self.file("apt/mirrors.list")
        certificate, wheels = self.file("pip/cert.pem"), self.file("wheels/a.whl").parent
        pages = self.file("pypi/simple/a/index.html").parents[1]
        source = self.file(
            "debian.sources", f"URIs: mirror+file:{mirrors} http://one.test/a\nSigned-By: {key}\n"
        )
        environ = {
            "PIP_FIND_LINKS": f"{wheels} {self.folder}/none",
            "PIP_EXTRA_INDEX_URL": f"file://{pages}",
        }
        gives = given.by(environ, f'Acquire::https::CAInfo "{certificate}";', [source], ())
        self.assertLessEqual({key, mirrors, certificate}, set(gives.copied))
        self.assertEqual([wheels, pages.parent], sorted(gives.bound, reverse=True))

    def test_no_hook_of_apt_comes_along(self) -> None:
        if not shutil.which("apt-config"):
            self.skipTest("no apt-config on PATH: this is no Debian")
        text = (
            'Acquire::Retries "7";\nDPkg::Post-Invoke {"rm -f /var/cache/apt/archives/*.deb";};\n'
        )
        self.useFixture(
            fixtures.EnvironmentVariable("APT_CONFIG", str(self.file("apt.conf", text)))
        )
        said = given.acquire()
        self.assertIn('Acquire::Retries "7";', said)
        self.assertNotIn("Invoke", said)
        self.assertNotIn("IndexTargets", said)


class CacheTest(testtools.TestCase):
    """What is kept becomes root's programs: nobody else may write there."""

    def setUp(self) -> None:
        super().setUp()
        out = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", out))
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "cache"

    def used(self) -> bool:
        with cli.kept_in(self.folder) as cache:
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
        with cli.kept_in(self.folder) as cache:
            self.assertNotEqual(self.folder, cache)


class IndexVariablesTest(testtools.TestCase):
    def variables(self, **given: str) -> dict[str, str]:
        upstream = cli.upstream(given)
        return cli.index_variables(given, upstream, [f"here/{n}" for n in upstream.indexes])

    def test_the_usual_one(self) -> None:
        self.assertEqual({"PIP_INDEX_URL": f"here/{index.PYPI}"}, self.variables())

    def test_only_what_is_asked_over_the_network(self) -> None:
        variables = self.variables(
            PIP_INDEX_URL="https://name:word@one.test/",
            PIP_EXTRA_INDEX_URL="https://two.test/ file:///opt/simple",
        )
        self.assertEqual("https://name:word@one.test/", variables["PIP_INDEX_URL"])
        extra = "here/https://two.test/ file:///opt/simple"
        self.assertEqual(extra, variables["PIP_EXTRA_INDEX_URL"])

    def test_not_through_a_proxy(self) -> None:
        variables = self.variables(http_proxy="http://p:1", no_proxy="x.test", PIP_PROXY="http://q")
        self.assertEqual("x.test,127.0.0.1", variables["no_proxy"])
        self.assertNotIn("PIP_PROXY", variables)
        self.assertEqual("http://q", cli.upstream({"PIP_PROXY": "http://q"}).proxy)

    def test_a_certificate_of_the_users_own(self) -> None:
        variables = self.variables(PIP_CLIENT_CERT="/c")
        self.assertEqual(index.PYPI, variables["PIP_INDEX_URL"])
