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

from lab.cloud import debian, settings


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
