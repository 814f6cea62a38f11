# SPDX-License-Identifier: Apache-2.0
"""The demo beside Debian's OpenStack: its page, its settings, what it writes to Debian's files"""

from __future__ import annotations

import dataclasses
import grp
import os
import pathlib

import fixtures
import testtools
from oslo_config import cfg

from lab.cloud import debian, guide, page, settings

_ROOT = settings.ROOT
_PAGE = """\
Title
=====

Build
=====

.. literalinclude:: script
   :language: shell
   :start-after: # page: build
   :end-before: # page: end

Text::

    not run

.. code-block:: shell

   first
   second \\
       third

Remove
======

.. code-block:: shell

   fourth
"""


class ScriptsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "page.rst")
        self.path.write_text(_PAGE)
        script = "# page: build\nmake\nmake check\n# page: end\n# page: other\nno\n# page: end\n"
        self.path.with_name("script").write_text(script)

    def test_blocks(self) -> None:
        expected = ["make\nmake check\n", "first\nsecond \\\n    third\n"]
        self.assertEqual(expected, page.scripts(self.path, "Build"))
        self.assertEqual(["fourth\n"], page.scripts(self.path, "Remove"))

    def test_none(self) -> None:
        for title in ("Title", "Other"):
            error = self.assertRaises(page.Malformed, page.scripts, self.path, title)
            self.assertIn(f"page.rst has no section {title} with a shell block", str(error))


class PageTest(testtools.TestCase):
    def test_what_is_run(self) -> None:
        self.assertIn("dpkg-buildpackage", page.scripts(guide.DEBIAN, "Build")[0])
        self.assertIn("python3-nova-gpu_*", page.scripts(guide.DEBIAN, "Install")[0])
        *_, check, restart = page.scripts(guide.DEBIAN, "Configure")
        self.assertEqual("nova-gpu-status upgrade check\n", check)
        names = [line.removeprefix("systemctl restart ") for line in restart.splitlines()]
        self.assertEqual(["nova-scheduler nova-api", "nova-compute"], names)

    def test_its_samples_are_in_the_package(self) -> None:
        (folder,) = {
            line
            for line in (_ROOT / "debian/nova-gpu.examples").read_text().split()
            if line.endswith("nova")
        }
        text = "".join(page.scripts(guide.DEBIAN, "Configure"))
        samples = [word for word in text.split() if word.endswith(".sample")]
        self.assertEqual(2, len(samples))
        for sample in samples:
            name = sample.removeprefix("/usr/share/doc/nova-gpu/examples/nova/")
            self.assertTrue((_ROOT / folder / name).is_file(), sample)


class SettingsTest(testtools.TestCase):
    def test_each_cloud_has_its_own(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for is_debian, kind, port in (
            (False, settings.Lab, 3307),
            (True, settings.DebianLab, 3306),
            (False, settings.Lab, 3307),
        ):
            lab = settings.save(folder, debian=is_debian)
            self.assertIs(kind, type(lab))
            self.assertEqual(port, lab.ports.mariadb)
            self.assertEqual(lab, settings.load(folder))

    def test_services(self) -> None:
        lab = settings.DebianLab(pathlib.Path("/lab"), settings.Ports(), "secret")
        for service, user, script in (
            ("keystone", "keystone", "keystone"),
            ("glance", "glance", "glance-api"),
            ("placement", "placement", "placement-api"),
            ("nova-compute", "nova", "nova-compute"),
        ):
            self.assertEqual(user, lab.user(service))
            command = [f"/etc/init.d/{script}", "systemd-start"]
            self.assertEqual(command, lab.command(service, ["other"]))
        for service, user in (("mariadb", "mysql"), ("rabbitmq", "rabbitmq"), ("neutron", "nova")):
            self.assertEqual(user, lab.user(service))
            self.assertEqual(["other"], lab.command(service, ["other"]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Folder(settings.DebianLab):
    """Debian's OpenStack below a folder, with all files of this process's group."""

    @property
    def etc(self) -> pathlib.Path:
        return self.folder / "etc"

    def user(self, service: str) -> str:
        return grp.getgrgid(os.getegid()).gr_name


class ConfigureTest(testtools.TestCase):
    def test_debians_lines_stay_and_the_clouds_count(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        lab = _Folder(folder, settings.Ports(mariadb=3306), "secret")
        for name, text in (
            ("nova/nova.conf", "[DEFAULT]\nstate_path = /var/lib/nova\nmy_ip = 10.0.0.1\n"),
            ("nova/nova-api-uwsgi.ini", "[uwsgi]\nprocesses = 16\nlogto = /var/log/nova.log\n"),
            ("default/rabbitmq-server", ""),
        ):
            (lab.etc / name).parent.mkdir(parents=True, exist_ok=True)
            (lab.etc / name).write_text(text)
        debian.configure(lab)
        path = lab.etc / "nova/nova.conf"
        self.assertTrue(path.read_text().startswith("[DEFAULT]\nstate_path = /var/lib/nova\n"))
        conf = cfg.ConfigOpts()
        conf.register_opts([cfg.StrOpt("my_ip"), cfg.StrOpt("compute_driver")])
        conf.register_opt(cfg.StrOpt("connection"), group="database")
        conf([], default_config_files=[str(path)])
        self.assertEqual("127.0.0.1", conf.my_ip)
        self.assertEqual("libvirt.LibvirtDriver", conf.compute_driver)
        self.assertIn("@127.0.0.1:3306/nova", conf.database.connection)
        uwsgi = (lab.etc / "nova/nova-api-uwsgi.ini").read_text().split("\n")
        self.assertEqual(["[uwsgi]", "", "processes = 1", ""], uwsgi)
        sql = lab.etc / "mariadb/mariadb.sql"
        self.assertEqual(0, sql.stat().st_mode & 0o007, "others can read the password")
