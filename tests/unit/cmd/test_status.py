# SPDX-License-Identifier: Apache-2.0
import pathlib
import platform

import fixtures
import sqlalchemy
import testtools
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from oslo_utils.fixture import uuidsentinel as uuids

from tests.fixtures import commands
from tests.fixtures.bases import commands as base

_MAPS = "[libvirt]\nvirt_type = lxc\nuid_maps = 0:100000:65536\ngid_maps = 0:100000:65536\n"

_PYMYSQL = """
version_info, paramstyle = (1, 4, 6, "final", 1), "pyformat"
class Error(Exception): pass
class InterfaceError(Error): pass
class DatabaseError(Error): pass
for name in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"):
    globals()[name + "Error"] = type(name + "Error", (DatabaseError,), {})
def connect(*args, **kwargs):
    raise OperationalError(2003, "Can't connect to MySQL server on '192.0.2.1' (timed out)")
"""


class UpgradeCheckTest(testtools.TestCase):
    def check(self, status: int, conf: str):
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        path.write_text(conf)
        done = commands.run("nova_gpu.cmd.status", "--config-file", path, "upgrade", "check")
        self.assertEqual(status, done.returncode, done.stdout + done.stderr)
        return done

    def test_privileged_containers(self):
        done = self.check(2, "[libvirt]\nvirt_type = lxc\n")
        self.assertIn("[libvirt]uid_maps", done.stdout)

    def test_options_that_do_not_exist(self):
        """oslo.config ignores them without a word."""
        done = self.check(
            1, f"{_MAPS}[gpu]\nlink_group = 10de:1091\nlinked = 10de:1092\nfast = 1\n"
        )
        text = " ".join(done.stdout.replace("|", " ").split())
        self.assertRegex(text, r"\[gpu\]link_group \(in [^)]+\): did you mean link_groups\?")
        self.assertRegex(text, r"\[gpu\]fast \(in [^)]+\): remove it")
        self.assertNotIn("[gpu]linked", text)  # the former name of an option

    def test_guests_without_pci_express(self):
        host = "[DEFAULT]\ncompute_driver = gpu.GPULibvirtDriver\n[libvirt]\nvirt_type = kvm\n"
        done = self.check(1, f"{host}hw_machine_type = x86_64=pc,aarch64=no\n")
        self.assertIn("hw_machine_type=q35", " ".join(done.stdout.split()))
        machine = platform.machine()
        self.check(0, f"{host}hw_machine_type = {machine}=q35\n")

    def test_a_database_that_does_not_answer(self):
        """By a stand-in for PyMySQL 1.1, whose connect() raises this where no server is
        (pymysql/connections.py). Nova would ask it ten times in 100 s, twice."""
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "pymysql.py").write_text(_PYMYSQL)
        url = "mysql+pymysql://nova:secret@192.0.2.1/nova"
        conf = folder / "nova.conf"
        conf.write_text(f"[api_database]\nconnection = {url}\n[database]\nconnection = {url}\n")
        words = ("--config-file", conf, "upgrade", "check")
        done = base.fresh(base.MAIN.format("status"), *words, path=folder, timeout=150)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn("Nova's databases do not answer", done.stdout)
        self.assertEqual("", done.stderr)
        self.assertNotIn("secret", done.stdout)

    def test_controller(self):
        """With what a controller's nova.conf has and no more, in a process of its own: everything
        that Nova's code reads to get at its databases has to be registered there.
        """
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        api, cell = (f"sqlite:///{folder}/{name}.sqlite" for name in ("api", "cell"))
        for connection, metadata in (
            (api, api_models.BASE.metadata),
            (cell, main_models.BASE.metadata),
        ):
            metadata.create_all(sqlalchemy.create_engine(connection))
        mapping = api_models.CellMapping.__table__.insert().values(
            uuid=uuids.cell, name="cell1", transport_url="fake:///", database_connection=cell
        )
        with sqlalchemy.create_engine(api).begin() as connection:
            connection.execute(mapping)
        conf = (base.ROOT / "etc/nova/nova-scheduler.conf.sample").read_text()
        conf += f"[api_database]\nconnection = {api}\n[database]\nconnection = {cell}\n"
        self.check(0, conf)
