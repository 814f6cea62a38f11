# SPDX-License-Identifier: Apache-2.0
"""What ``nova-gpu-status upgrade check`` finds, check by check."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import objects, test
from oslo_upgradecheck.upgradecheck import Code
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.cmd import status
from nova_gpu.core import names, release
from nova_gpu.core.scheduling import stats
from tests.fixtures import hosts

_FILTER = "nova_gpu.scheduler.filters.GPUFilter"


class ChecksTest(test.TestCase):
    def setUp(self) -> None:
        super().setUp()
        # Nova's own fixture has connected them.
        self.checks = status.Checks(connect=lambda: None)

    def assertResult(self, code: Code, text: str, result: Any) -> None:
        self.assertEqual(code, result.code, result.details)
        self.assertIn(text, result.details or "")

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

    def add_flavor(self, name: str, extra_specs: dict[str, str]) -> None:
        objects.Flavor(
            nova_context.get_admin_context(),
            name=name,
            flavorid=name,
            memory_mb=1,
            vcpus=1,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            is_public=False,
            disabled=False,
            vcpu_weight=0,
            extra_specs=extra_specs,
        ).create()

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

    def add_host(self, name: str, report: str | None) -> None:
        context = nova_context.get_admin_context()
        cell = self.cell_mappings["cell1"]
        with nova_context.target_cell(context, cell) as in_cell:
            objects.ComputeNode(
                in_cell,
                uuid=getattr(uuids, name),
                host=name,
                hypervisor_hostname=name,
                vcpus=1,
                memory_mb=1,
                local_gb=1,
                vcpus_used=0,
                memory_mb_used=0,
                local_gb_used=0,
                hypervisor_type="LXC",
                hypervisor_version=1,
                cpu_info="",
                stats={names.STATS: report} if report else {},
            ).create()

    def test_no_database(self) -> None:
        def broken() -> None:
            raise RuntimeError("Can't connect\nand more")

        checks = status.Checks(connect=broken)
        for check in (checks._check_flavors, checks._check_hosts):
            self.assertResult(Code.WARNING, "Can't connect; see [api_database]", check())
