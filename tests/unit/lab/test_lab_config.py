# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import configparser
import pathlib

import fixtures
import testtools
from oslo_config import cfg

from lab.cloud import compute, config, settings
from nova_gpu.conf import gpu


class SettingsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def test_none_yet(self) -> None:
        self.assertIsNone(settings.load(self.folder))

    def test_password_and_ports_stay(self) -> None:
        first = settings.save(self.folder, port_base=20000)
        self.assertEqual(first, settings.load(self.folder))
        self.assertEqual(first, settings.save(self.folder))
        self.assertEqual(1, first.computes)
        self.assertEqual(2, settings.save(self.folder, computes=2).computes)
        self.assertEqual(["compute-1", "compute-2"], self._hosts())
        self.assertEqual(0o600, (self.folder / "lab.json").stat().st_mode & 0o777)

    def _hosts(self) -> list[str]:
        lab = settings.load(self.folder)
        assert lab
        return [host.name for host in lab.hosts]

    def test_port_base(self) -> None:
        by_service = settings.Ports.from_base(20000).by_service()
        self.assertEqual(list(range(20000, 20009)), sorted(by_service.values()))
        self.assertIn("nova-api", by_service)
        for wrong in (80, 65530):
            self.assertRaises(ValueError, settings.Ports.from_base, wrong)


class RenderTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.lab = settings.Lab(self.folder, settings.Ports(), "secret", computes=2)
        self.host, self.other = self.lab.hosts

    def _parsed(self, template: str, lab: settings.Lab | None = None) -> configparser.ConfigParser:
        return self._read(config.text(template, config.values((lab or self.lab).hosts[0])))

    def _read(self, text: str) -> configparser.ConfigParser:
        parser = configparser.ConfigParser(strict=False, interpolation=None, default_section="")
        parser.read_string(text)
        return parser

    def test_hosts_share_instances_and_nothing_else(self) -> None:
        """What Nova keeps of a host, its identity and its locks, is the host's own."""
        one, two = (
            self._read(config.text("nova-compute.conf", config.values(host)))
            for host in (self.host, self.other)
        )
        differ = {
            (section, name)
            for section in one
            for name in one[section]
            if one[section][name] != two[section][name]
        }
        own = {("DEFAULT", "state_path"), ("oslo_concurrency", "lock_path")}
        gpu = {("gpu", name) for name in ("sysfs_root", "proc_root", "cdi_spec_dirs")}
        self.assertEqual(own | gpu, differ)
        self.assertEqual(str(self.lab.instances), one["DEFAULT"]["instances_path"])

    def test_nova_compute_ends_soon(self) -> None:
        """Else a restart of it takes minutes, and what is not waited for is killed."""
        own = self._parsed("nova-compute.conf")["DEFAULT"]
        self.assertLessEqual(int(own["manager_shutdown_timeout"]), 5)
        self.assertLess(int(own["graceful_shutdown_timeout"]), compute.PATIENCE_S)

    def test_nothing_is_written(self) -> None:
        for template in ("nova.conf", "nova-compute.conf", "nova-controller.conf"):
            config.text(template, config.values(self.host))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_compute_has_no_database(self) -> None:
        for template in ("nova.conf", "nova-compute.conf"):
            self.assertNotIn("mysql", config.render(template, config.values(self.host)))
        self.assertIn("database", self._parsed("nova-controller.conf"))

    def test_containers_are_unprivileged(self) -> None:
        libvirt = self._parsed("nova-compute.conf")["libvirt"]
        self.assertEqual(libvirt["uid_maps"], libvirt["gid_maps"])
        self.assertGreater(int(libvirt["uid_maps"].split(":")[1]), 0)

    def test_credentials_of_every_section_that_has_them(self) -> None:
        nova = self._parsed("nova.conf")
        for section in ("keystone_authtoken", "placement", "glance", "neutron", "oslo_limit"):
            self.assertEqual("secret", nova[section]["password"])
            self.assertEqual("http://127.0.0.1:5000", nova[section]["auth_url"])

    def test_gpu_options_exist(self) -> None:
        """What the lab sets is what the package reads, and the pretended host is where it is."""
        path = self.useFixture(fixtures.TempDir()).join("nova-compute.conf")
        pathlib.Path(path).write_text(config.text("nova-compute.conf", config.values(self.host)))
        conf = cfg.ConfigOpts()
        gpu.register_opts(conf)
        conf(["--config-file", path])
        self.assertEqual(f"{self.host.tree}/sys", conf.gpu.sysfs_root)
        self.assertEqual(f"{self.host.tree}/proc", conf.gpu.proc_root)
        self.assertEqual([f"{self.host.tree}/etc/cdi"], conf.gpu.cdi_spec_dirs)
        for name in self._parsed("nova-compute.conf")["gpu"]:
            self.assertIn(name, conf.gpu)

    def test_samples_are_what_is_added(self) -> None:
        names = config.values(self.host)
        for template, sample in (
            ("nova-compute.conf", "nova-compute.conf.sample"),
            ("nova-controller.conf", "nova-scheduler.conf.sample"),
        ):
            text = config.text(template, names)
            alone = config.text(template, names, with_gpus=False)
            self.assertEqual(f"{alone}\n", text.removesuffix(self._sample(sample)))
            self.assertNotIn("GPULibvirtDriver", alone)
            self.assertNotIn("nova_gpu", alone)
            self.assertNotIn("uid_maps", alone)

    def _sample(self, name: str) -> str:
        return (settings.ROOT / "etc/nova" / name).read_text()

    def test_real_gpus_are_read_where_they_are(self) -> None:
        lab = settings.Lab(self.lab.folder, self.lab.ports, "secret", real=True)
        self.assertEqual([], list(self._parsed("nova-compute.conf", lab)["gpu"]))

    def test_unknown_name_in_a_template(self) -> None:
        self.assertRaises(KeyError, config.render, "nova.conf", {})
