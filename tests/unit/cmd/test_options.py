# SPDX-License-Identifier: Apache-2.0
"""The mistakes in options that a newcomer makes: each is one line, and no traceback."""

from __future__ import annotations

import importlib
import json
import os
import pathlib

import fixtures
from nova.virt.libvirt import driver as libvirt_driver
from oslo_config import cfg
from oslo_config import fixture as config_fixture

from nova_gpu.cmd import options, this_host
from nova_gpu.conf import CONF, novas
from tests.fixtures import commands, hosts
from tests.fixtures.bases import commands as base

# What takes long to import and what nova-gpu list can do without.
_HEAVY = (
    *("nova.conf", "nova.objects", "nova.virt.libvirt", "nova.privsep", "nova.pci", "nova.db"),
    *("castellan", "eventlet", "jsonschema", "keystoneauth1", "oslo_messaging", "oslo_privsep"),
    *("sqlalchemy", "yaml"),
)
_LIST = """
import gc, json, sys
from nova_gpu.cmd import gpu
status = gpu.main(["nova-gpu", *sys.argv[1:]])
print(json.dumps([status, sorted(sys.modules), gc.get_freeze_count()]), file=sys.stderr)
"""
_CONNECT = """
import sys
from nova_gpu.cmd import services
from nova_gpu.conf import CONF
services.read_options(["nova-gpu", "--config-file", sys.argv[1]])
services.connect()
print(CONF.oslo_messaging_rabbit.use_queue_manager)
"""


class MistakesTest(base.CommandTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.configure("lxc")
        hosts.Host(self.root).add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")

    def assertOneLine(self, message: str, *arguments: object, by_each: bool = True) -> None:
        for module, last, status in (
            ("nova_gpu.cmd.gpu", ("list",), 1),
            ("nova_gpu.cmd.status", ("upgrade", "check"), 2),
        )[: 2 if by_each else 1]:
            done = commands.run(module, *arguments, *last)
            self.assertEqual(status, done.returncode, done.stderr + done.stdout)
            self.assertEqual(1, done.stderr.count("\n"), done.stderr)
            self.assertIn(message, done.stderr)
            self.assertEqual("", done.stdout)

    def test_files(self) -> None:
        missing, folder, binary, malformed = (
            self.root / name for name in ("missing", "folder", "binary", "malformed")
        )
        folder.mkdir()
        binary.write_bytes(b"\xff\xfe")
        malformed.write_text("[gpu\n")
        for path, message in (
            (missing, f"configuration file {missing}: no such file; give one"),
            (folder, f"configuration file {folder}: it is a folder, for which there is --config-d"),
            (binary, f"configuration file {binary}: it is not a UTF-8 text"),
            (malformed, f"configuration file {malformed}: at {malformed}:1, Invalid section"),
        ):
            with self.subTest(path.name):
                self.assertOneLine(message, "--config-file", self.conf, "--config-file", path)
        self.assertOneLine(f"{missing}: no such folder", "--config-dir", missing)

    def test_the_files_of_nova_compute(self) -> None:
        """Debian's nova-compute.conf overrides nova.conf, and a link to it is not read twice."""
        home = self.useFixture(fixtures.TempHomeDir()).path
        folder = pathlib.Path(home, ".nova")
        folder.mkdir()
        for name in ("nova", "nova-compute"):
            (folder / f"{name}.conf").touch()
        for _ in range(2):
            names = [os.path.basename(path) for path in options.default_files("nova-gpu")]
            self.assertEqual(("nova.conf", 2), (names[0], len(names)))
            (folder / "nova-gpu.conf").unlink(missing_ok=True)
            (folder / "nova-gpu.conf").symlink_to("nova-compute.conf")

    def test_values(self) -> None:
        path = self.root / "wrong.conf"
        files = ("--config-file", self.conf, "--config-file", path)
        for text, message in (
            ("[libvirt]\nvirt_type = xen", "[libvirt]virt_type (in {path}): Valid values are"),
            ("[gpu]\nnvml = maybe", "[gpu]nvml (in {path}): Unexpected boolean value 'maybe'; c"),
            # It is nova-compute's alone.
            ("[gpu]\non_stop = some", "[gpu]on_stop (in {path}): Valid values are"),
        ):
            path.write_text(f"{text}\n")
            self.assertOneLine(message.format(path=path), *files, by_each="virt_type" in text)

    def test_verify_without_libvirt(self) -> None:
        """One line for each that does not answer, and no log of Nova's beside them"""
        options = "[DEFAULT]\ntransport_url = fake:///\nrpc_response_timeout = 1\n[libvirt]\n"
        self.configure("lxc", f"{options}connection_uri = lxc+unix:///?socket=/nonexistent")
        done = self.nova_gpu("verify")
        self.assertEqual(3, done.returncode, done.stderr + done.stdout)
        self.assertEqual("", done.stderr)
        self.assertRegex(done.stdout, r"^Not compared: libvirt: .*/nonexistent.*\nNot compared: ")
        self.assertEqual(2, done.stdout.count("\n"), done.stdout)


class ConnectTest(base.HostTestCase):
    def test_the_queue_for_answers_is_numbered_in_no_file(self) -> None:
        conf = self.root / "nova.conf"
        conf.write_text(
            "[DEFAULT]\ntransport_url = fake://\n"
            "[oslo_messaging_rabbit]\nuse_queue_manager = true\n"
        )
        done = base.fresh(_CONNECT, conf)
        self.assertEqual("False\n", done.stdout, done.stderr)


class CostTest(base.CommandTestCase):
    def test_nothing_heavy_is_imported(self) -> None:
        host = hosts.Host(self.root)
        host.add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")
        host.add_gpu("0000:05:00.0", "10de", "2335", driver="vfio-pci")
        for kind, *words in (
            ("lxc", "list", "--json"),
            ("lxc", "show", "0000:04:00.0"),
            ("lxc", "topology"),
            ("kvm", "list", "--json"),
        ):
            self.configure(kind)
            modules, _ = self.imported(*words)
            self.assertEqual([], sorted(set(_HEAVY) & modules), words)
            loaded = {
                module for module in modules if module == "nova" or module.startswith("nova.")
            }
            self.assertEqual(set(), loaded, words)

    def imported(self, *words: str) -> tuple[set[str], str]:
        """The modules that are loaded after that command, and what it has shown"""
        done = base.fresh(_LIST, "--config-file", self.conf, *words)
        self.assertEqual(0, done.returncode, done.stderr)
        status, modules, frozen = json.loads(done.stderr.splitlines()[-1])
        self.assertEqual(0, status, done.stderr)
        self.assertGreater(frozen, 10_000, "the last collection looks through all modules")
        return set(modules), done.stdout


class NovasOptionsTest(base.HostTestCase):
    """What is read of Nova without Nova is as Nova has it."""

    def test_each_option(self) -> None:
        def facts(option: cfg.Opt) -> list[object]:
            former = [(old.name, old.group) for old in option.deprecated_opts]
            return [option.default, option.multi, str(option.type), former]

        novas_conf = cfg.ConfigOpts()
        for name in ("paths", "libvirt", "pci", "devices"):
            importlib.import_module(f"nova.conf.{name}").register_opts(novas_conf)
        for group, group_options in novas._options().items():
            registered = novas_conf if group == "DEFAULT" else novas_conf._groups[group]
            for option in group_options:
                novas_option = registered._opts[option.dest]["opt"]
                self.assertEqual(facts(novas_option), facts(option), option.name)

    def test_a_file_after_a_folder_names_another_option(self) -> None:
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "nova.conf")
        path.write_text("[DEFAULT]\nhost = c1\nstate_path = /lib/$host\n[libvirt]\nvirt_type = x\n")
        # The file counts, as it comes after the folder.
        path.with_name("d").mkdir()
        path.with_name("d").joinpath("a.conf").write_text("[DEFAULT]\nstate_path = /a\n")
        text = (
            "import sys; from nova_gpu.conf import CONF, NOVAS;"
            "CONF(sys.argv[1:], 'nova'); print(NOVAS.state_path)"
        )
        done = base.fresh(text, "--config-dir", path.with_name("d"), "--config-file", path)
        self.assertEqual("/lib/c1\n", done.stdout, done.stderr)
        # What was read before the files were does not stay.
        text = text.replace("CONF(", "NOVAS.state_path; CONF(")
        done = base.fresh(text, "--config-dir", path.with_name("d"))
        self.assertEqual("/a\n", done.stdout, done.stderr)

    def test_the_address_of_libvirt(self) -> None:
        config = self.useFixture(config_fixture.Config(CONF))
        for own in (None, "test:///default"):
            for kind in ("kvm", "qemu", "lxc", "parallels"):
                config.config(group="libvirt", virt_type=kind, connection_uri=own)
                novas = libvirt_driver.LibvirtDriver._uri()
                self.assertEqual(novas, this_host.uri())

    def test_nova_is_loaded_after_it(self) -> None:
        """As nova-gpu verify does"""
        text = (
            "import sys, nova_gpu.conf as ours; assert 'nova.conf' not in sys.modules;"
            "ours.CONF([], 'nova', default_config_files=[]);"
            "before = ours.NOVAS.conf(); assert before is ours.NOVAS.conf() is not ours.CONF;"
            "import nova.conf; from nova import config; "
            "assert nova.conf.CONF is ours.CONF is ours.NOVAS.conf(); "
            "ours.CONF.placement.auth_type; ours.CONF.clear(); "
            "config.parse_args(['nova-gpu'], [], False, False); "
            "print(before.libvirt.virt_type, ours.NOVAS.libvirt.virt_type)"
        )
        done = base.fresh(text)
        self.assertEqual("kvm kvm\n", done.stdout, done.stderr)

    def test_the_scheduler_loads_all_at_its_start(self) -> None:
        """Its files may be another release's from then on."""
        text = (
            "import sys, nova_gpu.scheduler.filters; from nova_gpu.core import extensions; "
            "before = {*sys.modules}; extensions.load('nova_gpu.set_traits'); "
            "print({*sys.modules} - before)"
        )
        done = base.fresh(text)
        self.assertEqual("set()\n", done.stdout, done.stderr)
