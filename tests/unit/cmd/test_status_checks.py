# SPDX-License-Identifier: Apache-2.0
"""What ``nova-gpu-status upgrade check`` finds, check by check."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
from typing import Any
from unittest import mock

import fixtures
import sqlalchemy
import testtools
from nova import context as nova_context
from nova import objects, test
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from oslo_upgradecheck.upgradecheck import Code
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.cmd import downgrade_check, status
from nova_gpu.core import names, release
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology.topology import Islands
from tests.fixtures import commands, hosts
from tests.fixtures.bases import commands as base

_FILTER = "nova_gpu.scheduler.filters.GPUFilter"
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


class _CloudTest(test.TestCase):
    def assertResult(self, code: Code, text: str, result: Any) -> None:
        self.assertEqual(code, result.code, result.details)
        self.assertIn(text, result.details or "")

    def add_flavor(self, name: str, extra_specs: dict[str, str]) -> objects.Flavor:
        flavor = objects.Flavor(
            nova_context.get_admin_context(),
            name=name,
            flavorid=name,
            memory_mb=2,
            vcpus=2,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            is_public=False,
            disabled=False,
            vcpu_weight=0,
            extra_specs=extra_specs,
        )
        flavor.create()
        return flavor


class ChecksTest(_CloudTest):
    def setUp(self) -> None:
        super().setUp()
        # Nova's own fixture has connected them.
        self.checks = status.UpgradeChecks(connect=lambda: None)

    def test_releases(self) -> None:
        for version, code in (
            *(("34.0.1", 0), ("29.4.0", 0)),
            *(("30.2.0", 1), ("28.3.0", 2), ("35.0.0", 1)),
        ):
            with mock.patch.object(importlib.metadata, "version", return_value=version):
                result = self.checks._check_release()
            self.assertEqual(Code(code), result.code)
            self.assertEqual(code != 0, f"Nova is {version}" in (result.details or ""))

    def test_weighers(self) -> None:
        ours, novas = (
            "nova_gpu.scheduler.weights.GPUWeigher",
            "nova.scheduler.weights.all_weighers",
        )
        for classes, code in (
            ([novas], Code.SUCCESS),
            ([novas, ours], Code.SUCCESS),
            ([ours], Code.WARNING),
        ):
            self.flags(weight_classes=classes, group="filter_scheduler")
            self.assertEqual(code, self.checks._check_weighers().code)

    def test_filter(self) -> None:
        self.assertResult(Code.WARNING, "flavors get no GPUs", self.checks._check_filter())
        with mock.patch.object(self.checks, "_is_controller", return_value=False):
            self.assertEqual(Code.SUCCESS, self.checks._check_filter().code)
        self.flags(enabled_filters=["GPUFilter"], group="filter_scheduler")
        self.assertResult(
            Code.FAILURE, f"available_filters = {_FILTER}", self.checks._check_filter()
        )
        self.flags(available_filters=[_FILTER], group="filter_scheduler")
        self.assertEqual(Code.SUCCESS, self.checks._check_filter().code)
        self.flags(enabled_filters=[], group="filter_scheduler")
        self.assertEqual(Code.FAILURE, self.checks._check_filter().code)

    def test_ports(self) -> None:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        host = hosts.build("switched-8", root)
        self.flags(group="gpu", sysfs_root=str(root / "sys"), proc_root=str(root / "proc"))
        self.flags(virt_type="kvm", group="libvirt")
        self.assertEqual(Code.SUCCESS, self.checks._check_ports().code)
        host.set_acs("0000:02:01.0", None)
        text = "0000:04:00.0, 0000:05:00.0: port 0000:02:01.0 has no ACS"
        self.assertResult(Code.WARNING, text, self.checks._check_ports())
        (host.path("0000:02:01.0") / "config").unlink()
        text = "port 0000:02:01.0 can be read by root only"
        self.assertResult(Code.WARNING, text, self.checks._check_ports())
        self.flags(group="gpu", allow_ports_without_acs=True)
        self.assertEqual(Code.SUCCESS, self.checks._check_ports().code)

    def test_programs_with_ids_of_guests(self) -> None:
        """As rootless containers have them whose /etc/subuid overlaps"""
        proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.flags(group="gpu", proc_root=str(proc))
        maps = ["0:100000:65536"]
        self.flags(virt_type="lxc", uid_maps=maps, gid_maps=maps, group="libvirt")
        for pid, uid in ((1, 0), (812, 100999)):
            self.assertEqual(Code.SUCCESS, self.checks._check_id_maps().code)
            (proc / str(pid)).mkdir()
            text = f"Name:\tnginx\nPPid:\t0\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            (proc / str(pid) / "status").write_text(text)
            (proc / str(pid) / "cmdline").write_bytes(b"nginx\0-g\0")
            (proc / str(pid) / "cgroup").write_text("0::/user.slice\n")
        self.assertResult(Code.WARNING, "nginx -g (pid 812)", self.checks._check_id_maps())

    def test_owners(self) -> None:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        hosts.Host(root).add_gpu("0000:04:00.0", "10de", "1091")
        for name in ("sysfs", "dev", "proc"):
            path = str(root / name.replace("sysfs", "sys"))
            self.flags(group="gpu", **{f"{name}_root": path})
        self.flags(virt_type="kvm", group="libvirt")
        self.assertEqual(Code.SUCCESS, self.checks._check_owners().code)
        spec = '{"vendor_id": "10de", "product_id": "1091"}'
        self.flags(device_spec=[spec], group="pci")
        result = self.checks._check_owners()
        self.assertResult(Code.WARNING, "0000:04:00.0: [pci]device_spec", result)
        self.flags(sysfs_root=f"{root}/nothing", group="gpu")
        result = self.checks._check_owners()
        self.assertResult(Code.WARNING, "Cannot tell whether [pci]device_spec", result)

    def test_flavors(self) -> None:
        self.add_flavor("good", {"gpus": "2", "hw:cpu_policy": "shared"})
        self.assertEqual(Code.SUCCESS, self.checks._check_flavors().code)
        self.add_flavor("bad", {"gpus": "two", "gpu_archs": "fermi"})
        result = self.checks._check_flavors()
        self.assertResult(Code.WARNING, "bad: gpus='two': 'two' is not a whole number", result)
        self.assertResult(Code.WARNING, "bad: gpu_archs='fermi': unknown property", result)
        self.assertNotIn("good:", result.details)

    def test_flavors_on_too_few_nodes(self) -> None:
        pinned = {"gpus": "8", "hw:cpu_policy": "dedicated"}
        policy = "hw:pci_numa_affinity_policy"
        for name, specs in (
            ("one", pinned),
            ("two", {**pinned, "hw:numa_nodes": "2"}),
            ("four", {**pinned, "gpus": "4"}),
            ("free", {"gpus": "8"}),
            ("preferred", {**pinned, policy: "preferred"}),
            ("bad", {**pinned, policy: "near"}),
        ):
            self.add_flavor(name, specs)
        self.assertEqual(Code.SUCCESS, self.checks._check_nodes().code)
        results = []
        for host, islands in (("near", 4), ("unknown", 1)):
            group = stats.GroupStats("10de:2335", None, "pci", 8, islands=Islands(islands))
            self.add_host(host, stats.dumps(stats.Report(stats.HostStats("QEMU", (group,)))))
            results.append(self.checks._check_nodes())
        self.assertEqual([Code.WARNING, Code.SUCCESS], [result.code for result in results])
        self.assertTrue(results[0].details.endswith(": one with 8 GPUs: hw:numa_nodes=2"), results)

    def test_flavors_that_nova_does_not_count(self) -> None:
        self.add_flavor("counted", {"gpus": "2", "resources:PGPU": "2"})
        self.add_flavor("bad", {"gpus": "two"})
        self.add_flavor("uncounted", {"gpus": "2", "vgpus": "1"})
        self.assertEqual(Code.SUCCESS, self.checks._check_counted().code)
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        result = self.checks._check_counted()
        self.assertEqual(Code.WARNING, result.code)
        self.assertTrue(
            result.details.endswith(": uncounted lacks resources:PGPU=2 resources:VGPU=1"),
            result.details,
        )

    def test_hosts(self) -> None:
        own = stats.Report(stats.HostStats("LXC", ()), release=release.running())
        report = stats.dumps(own)
        self.add_host("now", report)
        self.add_host("without", None)
        self.assertEqual(Code.SUCCESS, self.checks._check_hosts().code)
        self.add_host("older", report.replace('"v":2', '"v":1'))
        self.add_host("newer", report.replace('"v":2', '"v":99'))
        for name, other in (("forgotten", None), ("other", "1.0.0")):
            self.add_host(name, stats.dumps(dataclasses.replace(own, release=other)))
        result = self.checks._check_hosts()
        self.assertResult(Code.WARNING, "older: version 1 of the report, not 2", result)
        for text in ("forgotten: an older release, not", "other: 1.0.0, not"):
            self.assertResult(Code.WARNING, text, result)
        self.assertResult(Code.WARNING, "newer: a host's report of its GPUs cannot be", result)
        self.assertNotIn("without", result.details)
        self.assertNotIn("now:", result.details)

    def test_candidates_beyond_the_limit(self) -> None:
        types = tuple((f"nvidia-{n}", None, 1) for n in range(3))
        divided = stats.Divided(1, 1, types)
        for name in ("one", "two"):
            report = stats.Report(stats.HostStats("QEMU", ()), divided=divided)
            self.add_host(name, stats.dumps(report))
        self.add_host("unreadable", "{}")
        self.add_flavor("typed", {"vgpus": "1", "vgpu_type": "nvidia-1"})
        self.add_flavor("any", {"vgpus": "1"})
        self.add_flavor("novas", {"resources1:VGPU": "1", "resources2:VGPU": "1"})
        self.assertEqual(Code.SUCCESS, self.checks._check_candidates().code)
        self.flags(max_placement_results=6, group="scheduler")
        result = self.checks._check_candidates()
        self.assertEqual(Code.WARNING, result.code)
        self.assertTrue(result.details.endswith(": novas: 18 on 2 hosts"), result.details)

    def test_free_gpus_that_no_flavor_can_use(self) -> None:
        group = stats.GroupStats("10de:2330", "hopper", "pci", 8)
        report = stats.Report(stats.HostStats("QEMU", (group,)), (((-1, 0, -1, -1, 3),),))
        keeping = dataclasses.replace(report, reserved_per_free_gpu=stats.Reserved(1))
        taken = dataclasses.replace(report, free=((),))
        for name, used, reported in (
            ("fits", 0, report),
            ("full", 1, report),
            *(("keeps", 1, keeping), ("taken", 1, taken)),
        ):
            self.add_host(name, stats.dumps(reported), vcpus_used=used)
        self.assertEqual(Code.SUCCESS, self.checks._check_stranded().code)
        self.add_flavor("gpus", {"gpus": "2"})
        self.add_flavor("of another kind", {"gpus": "1", "gpu_arch": "fermi"})
        result = self.checks._check_stranded()
        self.assertEqual(Code.WARNING, result.code)
        text = "room: full: 3 free, with 1 vCPUs and 2 MiB of memory"
        self.assertTrue(result.details.endswith(text), result.details)
        self.flags(cpu_only_instances="never", group="gpu")
        self.assertEqual(Code.SUCCESS, self.checks._check_stranded().code)

    def add_host(self, name: str, report: str | None, vcpus_used: int = 0) -> None:
        context = nova_context.get_admin_context()
        cell = self.cell_mappings["cell1"]
        with nova_context.target_cell(context, cell) as in_cell:
            objects.ComputeNode(
                in_cell,
                uuid=getattr(uuids, name),
                host=name,
                hypervisor_hostname=name,
                vcpus=2,
                memory_mb=2,
                local_gb=1,
                vcpus_used=vcpus_used,
                cpu_allocation_ratio=1.0,
                memory_mb_used=0,
                local_gb_used=0,
                hypervisor_type="LXC",
                hypervisor_version=1,
                cpu_info="",
                stats={names.STATS: report} if report else {},
            ).create()


class WayBackTest(_CloudTest):
    """What revision f284d885 cannot take over"""

    def setUp(self) -> None:
        super().setUp()
        self.back = downgrade_check.DowngradeChecks(connect=lambda: None)

    def add_stopped(self, name: str, flavor: objects.Flavor, marked: bool, had: str = "") -> None:
        resource = {"resource_class": had, "provider_uuid": uuids.group, "identifier": had}
        context = nova_context.get_admin_context()
        with nova_context.target_cell(context, self.cell_mappings["cell1"]) as in_cell:
            objects.Instance(
                in_cell,
                uuid=getattr(uuids, name),
                project_id="fake",
                host="host1",
                vm_state="stopped",
                flavor=flavor,
                old_flavor=None,
                new_flavor=None,
                system_metadata={"nova_gpu_released": "true"} if marked else {},
                resources=objects.ResourceList(
                    objects=[objects.Resource(**resource)] if had else []
                ),
            ).create()

    def test_stopped_without_a_mark(self) -> None:
        gpus, none = self.add_flavor("gpus", {"gpus": "1"}), self.add_flavor("none", {})
        self.add_stopped("marked", gpus, marked=True)
        self.add_stopped("keeps", gpus, marked=False, had=names.RESOURCE_CLASS)
        self.add_stopped("without", none, marked=False)
        self.assertEqual(Code.SUCCESS, self.back._check_stopped().code)
        self.add_stopped("unmarked", gpus, marked=False, had="CUSTOM_PMEM_1GB")
        result = self.back._check_stopped()
        self.assertResult(Code.FAILURE, f": {uuids.unmarked} on host1", result)

    def test_counts(self) -> None:
        for name, value in (("one", "1"), ("apart", "= 1"), ("least", " >= 1")):
            self.add_flavor(name, {"gpus": value})
        self.assertEqual(Code.SUCCESS, self.back._check_counts().code)
        self.add_flavor("whole", {"gpus": "=2"})
        self.add_flavor("parts", {"vgpus": " >=2"})
        text = "parts: vgpus=' >=2'; whole: gpus='=2'"
        self.assertResult(Code.FAILURE, text, self.back._check_counts())

    def test_host(self) -> None:
        state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.flags(state_path=str(state))
        self.flags(virt_type="lxc", group="libvirt")
        product = "10de:25b6 name=A2"
        checks = [judge for _, judge in self.back._upgrade_checks]
        for types, lines, command, codes in (
            ((), [], [], (0, 0, 0)),
            (("vf",), [product], [], (0, 0, 0)),
            (("vf", "vf-of-2-16384mib"), ["10DE:25B6:10de:157e name=A2"], ["/bin/it"], (2, 2, 1)),
        ):
            of_node = {f"n1_gpu_1002_740f_vgpu_{item}": uuids.one for item in types}
            text = json.dumps({"node": "n1", "providers": of_node})
            (state / "gpu-providers").write_text(text)
            self.flags(group="gpu", product=lines, divide_command=command)
            results = [judge(self.back) for judge in checks[2:5]]
            self.assertEqual(codes, tuple(int(result.code) for result in results), results)
        (state / "gpu-providers").write_text("[]")
        self.assertResult(Code.WARNING, "Cannot tell", self.back._check_functions())


class UpgradeCheckTest(testtools.TestCase):
    def check(self, status: int, conf: str, *options: str) -> Any:
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        path.write_text(conf)
        done = commands.run(
            "nova_gpu.cmd.status", "--config-file", path, "upgrade", "check", *options
        )
        self.assertEqual(status, done.returncode, done.stdout + done.stderr)
        return done

    def test_privileged_containers(self) -> None:
        done = self.check(2, "[libvirt]\nvirt_type = lxc\n")
        self.assertIn("[libvirt]uid_maps", done.stdout)

    def test_back(self) -> None:
        """By the other checks, which want no maps of ids, and as JSON"""
        conf = "[libvirt]\nvirt_type = lxc\n[gpu]\ncount_models = true\n"
        checks = json.loads(self.check(1, conf, "--back", "--json").stdout)["checks"]
        by_name = {check["check"]: check for check in checks}
        self.assertEqual([1], [item["result"] for item in checks if item["result"]])
        self.assertIn("count_models: ", by_name["Options have an effect"]["details"])

    def test_options_that_do_not_exist(self) -> None:
        """oslo.config ignores them without a word."""
        done = self.check(
            1, f"{_MAPS}[gpu]\nlink_group = 10de:1091\nlinked = 10de:1092\nfast = 1\n"
        )
        text = " ".join(done.stdout.replace("|", " ").split())
        self.assertRegex(text, r"\[gpu\]link_group \(in [^)]+\): did you mean link_groups\?")
        self.assertRegex(text, r"\[gpu\]fast \(in [^)]+\): remove it")
        self.assertNotIn("[gpu]linked", text)  # the former name of an option

    def test_guests_without_pci_express(self) -> None:
        host = "[DEFAULT]\ncompute_driver = gpu.GPULibvirtDriver\n[libvirt]\nvirt_type = kvm\n"
        done = self.check(1, f"{host}hw_machine_type = x86_64=pc,aarch64=no\n")
        self.assertIn("hw_machine_type=q35", " ".join(done.stdout.split()))
        machine = platform.machine()
        self.check(0, f"{host}hw_machine_type = {machine}=q35\n")

    def test_a_database_that_does_not_answer(self) -> None:
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

    def test_controller(self) -> None:
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
