# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
from typing import Any, ClassVar
from unittest import mock
from urllib import parse

import fixtures
from keystoneauth1 import exceptions as ks_exc
from nova import exception as nova_exception
from nova import objects
from nova.objects import base as objects_base
from nova.scheduler import request_filter, utils
from nova.scheduler.client import report
from oslo_utils import timeutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core.placement import reserved_hosts
from nova_gpu.scheduler import placement
from nova_gpu.scheduler.request_filter import gpu_candidates_filter, gpu_request_filter
from tests.fixtures.bases.request_filter import RequestFilterTestCase
from tests.fixtures.cloud_gpus import request_spec

FERMI = "CUSTOM_GPU_ARCH_FERMI"


class QueryTest(RequestFilterTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = self.placement.add_host("host1")
        self.fermi = self.placement.add_group(self.host, 4, "fermi")
        self.kepler = self.placement.add_group(self.host, 8, "kepler", product_id="1023")
        self.unknown = self.placement.add_group(self.host, 8, None, product_id="ffff")
        self.other = self.placement.add_host("host2")
        self.qemu = self.placement.add_group(self.other, 8, "ada", hypervisor="QEMU")

    def test_which_groups_a_flavor_may_take(self) -> None:
        everything = {self.fermi, self.kepler, self.unknown, self.qemu}
        for specs, expected in (
            ({"gpus": "= 2"}, everything),
            ({"gpus": "= 8"}, everything - {self.fermi}),
            ({"gpus": "2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}, {self.fermi}),
            ({"gpus": "2", "gpu_arch": "s!= fermi"}, {self.kepler, self.qemu}),
            ({"gpus": "2", "gpu_arch": "s!= fermi", "hypervisor": "LXC"}, {self.kepler}),
            ({"gpus": "2", "gpu_arch": "<or> fermi <or> ada"}, {self.fermi, self.qemu}),
            ({"gpus": "2", "gpu_arch": "<or> fermi <or> hopper"}, {self.fermi}),
            ({"gpus": "2", "gpu_arch": "<in> er"}, {self.fermi, self.kepler}),
            ({"gpus": "2", "hypervisor": "s== KVM"}, {self.qemu}),
            ({"gpus": "2", "hypervisor": "s!= KVM"}, everything - {self.qemu}),
            ({"gpus": "2", "hypervisor_type": "QEMU"}, {self.qemu}),
            ({"resources:PGPU": "2"}, everything),
            ({"resources:PGPU": "2", f"trait:{FERMI}": "required"}, {self.fermi}),
            ({"resources:PGPU": "2", "gpus": "= 2", "gpu_arch": "kepler"}, {self.kepler}),
            ({"resources_a:PGPU": "2", f"trait_a:{FERMI}": "required"}, {self.fermi}),
        ):
            with self.subTest(specs=specs):
                self.assertEqual(expected, self.taken(self.run_filter(specs)))

    def test_the_query_of_the_blueprints_flavor(self) -> None:
        spec = self.run_filter({"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"})
        query = utils.ResourceRequest.from_request_spec(spec).to_querystring()
        self.assertEqual(
            {
                "limit": "1000",
                "resources": "DISK_GB:10,MEMORY_MB:512,VCPU:1",
                "resources_nova_gpu": "PGPU:2",
                "required_nova_gpu": f"CUSTOM_GPU,{FERMI},CUSTOM_GPU_HYPERVISOR_LXC",
                "root_required": "!CUSTOM_GPU_DRAINED",
            },
            dict(parse.parse_qsl(query)),
        )

    def test_an_image_that_requires_a_gpu(self) -> None:
        flavor = {"gpus": "= 2"}
        for traits, expected in (
            (["CUSTOM_GPU"], {self.fermi, self.kepler, self.unknown, self.qemu}),
            ([FERMI], {self.fermi}),
        ):
            with self.subTest(traits=traits):
                spec = self.run_filter(flavor, image_traits=traits)
                self.assertEqual(expected, self.taken(spec))
                plain = self.run_filter({}, image_traits=traits)
                self.assertEqual([], self.candidates(plain))

    def test_two_device_kinds_do_not_lend_each_other_traits(self) -> None:
        self.placement._put(
            f"/resource_providers/{self.kepler}/inventories",
            {"resource_provider_generation": 2, "inventories": {"VGPU": {"total": 8}}},
        )
        both = {"gpus": "= 2", "resources:VGPU": "1", "gpu_arch": "kepler"}
        self.assertIn("Scheduling failed", self.refusal(both))
        spec = self.run_filter(both | {"gpu_arch": "fermi"})
        self.assertEqual({self.fermi}, self.taken(spec))

    def test_a_second_time_changes_nothing(self) -> None:
        spec = self.run_filter({"gpus": "= 2", "gpu_arch": "s!= fermi"})
        once = dict(spec.flavor.extra_specs)
        self.assertTrue(gpu_request_filter(self.context, spec))
        self.assertEqual(once, spec.flavor.extra_specs)

    def test_the_flavor_others_hold_is_left_as_it_is(self) -> None:
        spec = request_spec({"gpus": "= 2"})
        shared = spec.flavor
        gpu_request_filter(self.context, spec)
        self.assertEqual({"gpus": "= 2"}, shared.extra_specs)
        self.assertEqual("2", spec.flavor.extra_specs["resources_nova_gpu:PGPU"])

    def test_the_spec_still_travels(self) -> None:
        spec = self.run_filter({"gpus": "= 2"})
        primitive = spec.obj_to_primitive()
        again = objects_base.NovaObject.obj_from_primitive(primitive)
        self.assertEqual(spec.flavor.extra_specs, again.flavor.extra_specs)

    def test_a_flavor_without_gpus_is_left_alone(self) -> None:
        for specs in ({}, {"hypervisor": "s== LXC"}, {"resources:VGPU": "1"}):
            spec = request_spec(specs)
            with self.subTest(specs=specs):
                self.assertFalse(gpu_request_filter(self.context, spec))
                self.assertFalse(gpu_candidates_filter(self.context, spec))
                self.assertEqual(specs, spec.flavor.extra_specs)

    def test_they_run_first_and_last_and_once(self) -> None:
        import nova_gpu.scheduler.filters  # noqa: F401

        first, *novas, last = request_filter.ALL_REQUEST_FILTERS
        self.assertEqual((gpu_request_filter, gpu_candidates_filter), (first, last))
        self.assertFalse({first, last} & set(novas))


class ReasonTest(RequestFilterTestCase):
    """What the log says of it, which is at least what the fault does"""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu.scheduler"))

    def refusal(self, extra_specs: dict[str, str], **kwargs: Any) -> str:
        super().refusal(extra_specs, **kwargs)
        return self.logged()

    def logged(self) -> str:
        """The reason in the log's last line"""
        line = self.log.output.splitlines()[-1]
        return line.partition("No host for an instance with GPUs: ")[2]

    def test_no_gpus_at_all(self) -> None:
        self.assertIn("no host offers GPUs", self.refusal({"gpus": "1"}))
        self.placement.add_host("host1")
        self.assertIn("no host offers GPUs", self.refusal({"gpus": "1", "gpu_arch": "s!= x"}))

    def test_names_nobody_has(self) -> None:
        host = self.placement.add_host("host1")
        self.placement.add_group(host, 4, "fermi")
        self.placement.add_group(host, 8, "kepler", product_id="1023")
        self.placement.add_group(host, 8, None, product_id="ffff")
        for specs, part in (
            ({"gpu_arch": "s== hopper"}, "gpu_arch hopper; there are: fermi, kepler"),
            ({"gpu_arch": "<or> ada <or> hopper"}, "<or> ada <or> hopper; there are: fermi, k"),
            ({"gpu_arch": "<in> dna"}, "gpu_arch <in> dna; there are: fermi, kepler"),
            ({"hypervisor": "s== KVM"}, "hypervisor kvm (qemu); there are: lxc"),
            ({"hypervisor": "s!= LXC"}, "hypervisor s!= lxc; there are: lxc"),
        ):
            with self.subTest(specs=specs):
                self.assertIn(part, self.refusal({"gpus": "= 2"} | specs))

    def test_nothing_that_they_are_to_be_near(self) -> None:
        host = self.placement.add_host("host1")
        self.placement.add_group(host, 4)
        asked = {"gpus": "1", "gpu:near": "nic"}
        insisting = asked | {"gpu:near_policy": "required"}
        self.assertIn("no host has GPUs with gpu:near nic", self.refusal(insisting))
        self.placement.add_group(host, 4, product_id="1023", near=("nvme",))
        self.assertIn("gpu:near nic; there are: nvme", self.refusal(insisting))
        self.run_filter(asked)
        near = self.placement.add_group(host, 4, product_id="1024", near=("nic", "nvme"))
        self.assertEqual({near}, self.taken(self.run_filter(insisting)))

        spec = request_spec(insisting)
        spec.pci_requests = objects.InstancePCIRequests(requests=[])
        with self.assertRaisesRegex(nova_exception.RequestFilterFailed, "asks for no device"):
            self.run_both(spec)

    def test_peers(self) -> None:
        host = self.placement.add_host("host1")
        asked = {"gpus": "2", "gpu:peer_access": "required"}
        self.placement.add_group(host, 4)
        said = "no host has GPUs with gpu:peer_access over the root; there are: none"
        self.assertIn(said, self.refusal(asked))
        self.run_filter(asked | {"gpu:peer_access": "preferred"})
        self.run_filter(asked | {"gpus": "1"})
        having = self.placement.add_group(host, 4, product_id="1023", peers=True)
        self.assertEqual({having}, self.taken(self.run_filter(asked)))

        self.assertIn(
            "which the image's img_hide_hypervisor_id hides", self.refusal(asked, hidden=True)
        )
        self.run_filter(asked | {"gpu:peer_access": "preferred"}, hidden=True)
        hiding = asked | {"hw:hide_hypervisor_id": "true"}
        self.assertIn("which hw:hide_hypervisor_id hides", self.refusal(hiding))

    def test_each_exists_but_not_together(self) -> None:
        self.placement.add_group(self.placement.add_host("host1"), 4, "fermi", hypervisor="LXC")
        self.placement.add_group(self.placement.add_host("host2"), 4, "ada", hypervisor="QEMU")
        text = self.refusal({"gpus": "2", "gpu_arch": "ada", "hypervisor": "LXC"})
        self.assertIn("no host has GPUs (architecture ada, hypervisor lxc): there are GPUs", text)

    def test_all_in_use(self) -> None:
        host = self.placement.add_host("host1")
        self.placement.add_group(host, 8, "fermi", used=8)
        text = self.refusal({"gpus": "= 2", "gpu_arch": "s== fermi"})
        self.assertEqual("2 GPUs (architecture fermi) asked for, 0 of 8 free (8 in use)", text)

    def test_gpus_are_free_but_not_the_rest(self) -> None:
        """The one condition that excludes their host is named, by few requests."""
        host = self.placement.add_host("host1", vcpus=8)
        self.placement.add_group(host, 8, used=4)
        self.placement.add_host("host2", vcpus=64)
        amx = ["HW_CPU_X86_AMX_BF16"]
        both = {"resources1:PGPU": "1", "resources2:PGPU": "1", "group_policy": "isolate"}
        for specs, kwargs, part in (
            ({"gpus": "1"}, {"vcpus": 200}, "1 fitting GPU is free, but on no host with 200 VCPU"),
            ({"gpus": "2"}, {"image_traits": amx}, f"but on no host with the trait {amx[0]}"),
            (both, {}, "but not from another group of GPUs for each request group"),
            (both | {"resources2:PGPU": "4", "group_policy": "none"}, {}, "each is free, but not"),
        ):
            with (
                self.subTest(specs=specs),
                mock.patch.object(placement, "_get", wraps=placement._get) as sent,
            ):
                self.assertIn(part, self.refusal(specs, **kwargs))
                self.assertLess(sent.call_count, 12)
        self.placement.drain(host, "COMPUTE_STATUS_DISABLED")
        spec = request_spec({"gpus": "1"})
        spec.root_forbidden.add("COMPUTE_STATUS_DISABLED")
        self.check(spec, "free only on hosts that take no new instance: their compute service is")

    def test_gpus_are_free_but_in_another_zone(self) -> None:
        self.placement.add_group(self.placement.add_host("host1", aggregates=[uuids.one]), 8)
        small = self.placement.add_host("host2", aggregates=[uuids.two])
        self.run_filter({"gpus": "= 2"}, aggregates=[uuids.one])
        text = self.refusal({"gpus": "= 2"}, aggregates=[uuids.two])
        self.assertEqual("no host has GPUs among the hosts that the project may use", text)
        self.placement.add_group(small, 2, used=1)
        spec = request_spec({"gpus": "2"}, aggregates=[uuids.two])
        spec.availability_zone = "az1"
        self.check(spec, "1 of 2 free, at most 1 in one host (1 in use) in zone az1")

    def test_a_move_does_not_count_the_host_that_it_leaves(self) -> None:
        for name, used in (("host1", 2), ("host2", 7)):
            self.nodes[f"compute-of-{name}"] = host = self.placement.add_host(name)
            self.placement.add_group(host, 8, used=used)
        spec = request_spec({"gpus": "2"})
        spec.ignore_hosts = ["compute-of-host1"]
        self.check(spec, "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7 in use) besides")
        spec = request_spec({"gpus": "2"})
        spec.force_hosts = ["compute-of-host2"]
        self.check(spec, "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7 in use)")

    def test_the_host_asked_for_is_the_one_spoken_of(self) -> None:
        for name, used in (("host1", 7), ("host2", 0)):
            self.placement.add_group(self.placement.add_host(name), 8, used=used)
        self.placement.add_host("host3")
        for destination, part in (
            ({"host": "host1"}, "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7 in use)"),
            ({"host": "other", "node": "host1"}, "1 of 8 free"),
            ({"host": "host3"}, "the requested host has no GPUs"),
            ({"host": "host2"}, None),
            ({"host": "nobody-knows"}, None),
            ({"node": "host2"}, None),
        ):
            spec = request_spec({"gpus": "2"})
            spec.requested_destination = objects.Destination(**destination)
            with self.subTest(destination=destination):
                self.check(spec, part)
        for forced, part in (
            ({"force_hosts": ["host1"]}, "1 of 8"),
            ({"force_nodes": ["host1"]}, "1 of 8"),
            ({"force_nodes": []}, None),
        ):
            spec = request_spec({"gpus": "2"})
            for field, value in forced.items():
                setattr(spec, field, value)
            with self.subTest(forced=forced):
                self.check(spec, part)

    def check(self, spec: objects.RequestSpec, part: str | None) -> None:
        try:
            self.run_both(spec)
            self.assertIsNone(part)
        except nova_exception.RequestFilterFailed as e:
            self.assertIn(part or "nothing, for it should pass", self.logged(), e.message)

    def test_so_many_groups_are_not_counted(self) -> None:
        from nova_gpu.scheduler import placement as ours

        self.useFixture(fixtures.MonkeyPatch(f"{ours.__name__}._MOST_COUNTED", 1))
        for name in ("host1", "host2"):
            self.placement.add_group(self.placement.add_host(name), 8, used=8)
        self.assertIn("none of the 2 groups of GPUs has 2 free", self.refusal({"gpus": "2"}))

    def test_a_refusal_asks_placement_a_bounded_number_of_times(self) -> None:
        """Whatever the cloud's size, and however many groups a flavor has"""
        for number in range(12):
            host = self.placement.add_host(f"host{number}", vcpus=8)
            self.placement.add_group(host, 8, "fermi", used=4 if number < 3 else 8)
            self.placement.add_group(host, 8, "kepler", product_id="1023", used=8)
        asked: list[str] = []
        get = report.SchedulerReportClient.get

        def counting(this: report.SchedulerReportClient, url: str, **kwargs: Any) -> Any:
            asked.append(url)
            return get(this, url, **kwargs)

        self.useFixture(fixtures.MockPatchObject(report.SchedulerReportClient, "get", counting))
        text = self.refusal(
            {
                "resources1:PGPU": "2",
                f"trait1:{FERMI}": "required",
                "resources2:PGPU": "2",
                "trait2:CUSTOM_GPU_ARCH_KEPLER": "required",
                "group_policy": "none",
            }
        )
        self.assertIn("none of the 12 groups of GPUs (CUSTOM_GPU_ARCH_KEPLER) has 2 free", text)
        self.assertLess(len(asked), 30, asked)
        asked.clear()
        both = {f"trait:{FERMI}": "required", "trait:CUSTOM_GPU_ARCH_KEPLER": "required"}
        self.assertIn("none for all of them at once", self.refusal({"resources:PGPU": "2", **both}))
        self.assertLess(len(asked), 10, asked)

    def test_the_group_that_is_short_is_the_one_spoken_of(self) -> None:
        """However many there are of the other"""
        from nova_gpu.scheduler import placement as ours

        self.useFixture(fixtures.MonkeyPatch(f"{ours.__name__}._MOST_COUNTED", 2))
        for number in range(4):
            host = self.placement.add_host(f"host{number}")
            self.placement.add_group(host, 8, "fermi", used=0 if number else 8)
        host = self.placement.add_host("other")
        self.placement.add_group(host, 8, "kepler", product_id="1023", used=7)
        text = self.refusal(
            {
                "resources1:PGPU": "2",
                f"trait1:{FERMI}": "required",
                "resources2:PGPU": "2",
                "trait2:CUSTOM_GPU_ARCH_KEPLER": "required",
                "group_policy": "none",
            }
        )
        self.assertIn("(CUSTOM_GPU_ARCH_KEPLER) asked for, 1 of 8 free", text)

    def test_no_word_of_hosts_or_other_instances(self) -> None:
        host = self.placement.add_host("secret-host")
        group = self.placement.add_group(host, 8, used=8)
        text = self.refusal({"gpus": "2"})
        for part in ("secret-host", host, group, "other"):
            self.assertNotIn(part, text)


class DrainedTest(RequestFilterTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.first = self.placement.add_host("host1")
        self.of_first = self.placement.add_group(self.first, 8)
        self.of_second = self.placement.add_group(self.placement.add_host("host2"), 8)
        self.vgpus = self.placement.add_vgpus(self.first, 4, "nvidia-35")

    def test_no_candidate_there_for_gpus_or_vgpus(self) -> None:
        self.placement.drain(self.first)
        self.assertEqual({self.of_second}, self.taken(self.run_filter({"gpus": "= 2"})))
        self.assertEqual({self.of_second}, self.taken(self.run_filter({"resources:PGPU": "2"})))
        self.assertIn(
            "Scheduling failed: 1 vGPU asked for are free only on hosts that are drained",
            self.refusal({"vgpus": "1"}),
        )
        self.assertEqual(2, len(self.candidates(self.run_filter({}))))

    def test_the_host_asked_for(self) -> None:
        self.placement.drain(self.first)
        self.assertIn(
            "the requested host is drained: it takes no new instance with GPUs",
            self.refusal_of_host("host1"),
        )

    def refusal_of_host(self, host: str) -> str:
        spec = request_spec({"gpus": "2"})
        spec.requested_destination = objects.Destination(host=host)
        try:
            self.run_both(spec)
        except nova_exception.RequestFilterFailed as e:
            return str(e.message)
        raise AssertionError("not refused")

    def test_trait_that_somebody_deletes(self) -> None:
        self.run_filter({"gpus": "= 2"})
        gone = self.placement.api.delete("/traits/CUSTOM_GPU_DRAINED", version="1.36")
        self.assertEqual(204, gone.status)
        spec = self.run_filter({"gpus": "= 2"})
        self.assertEqual({self.of_first, self.of_second}, self.taken(spec))

    def test_is_put_to_placement_once(self) -> None:
        put: list[str] = []
        real = report.SchedulerReportClient.put

        def counting(this: report.SchedulerReportClient, url: str, *args: Any, **kw: Any) -> Any:
            put.append(url)
            return real(this, url, *args, **kw)

        self.useFixture(fixtures.MockPatchObject(report.SchedulerReportClient, "put", counting))
        for _ in range(3):
            self.run_filter({"gpus": "= 2"})
        self.assertEqual(["/traits/CUSTOM_GPU_DRAINED"], put)

    def test_where_placement_does_not_take_it(self) -> None:
        """Nobody knows then which hosts are drained."""

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise ks_exc.ConnectFailure

        self.useFixture(fixtures.MockPatchObject(report.SchedulerReportClient, "put", fail))
        self.assertIn("Placement does not say which GPUs", self.refusal({"gpus": "= 2"}))


class KeptTest(RequestFilterTestCase):
    """Hosts whose GPUs are for who is not preemptible"""

    SPOT: ClassVar = {"gpus": "= 2", "gpu:preemptible": "30m", "gpu:on_preempt": "delete"}

    def setUp(self) -> None:
        super().setUp()
        self.first = self.placement.add_host("host1")
        self.of_first = self.placement.add_group(self.first, 8)
        self.until = timeutils.utcnow().replace(microsecond=0) + datetime.timedelta(minutes=10)
        self.placement.drain(self.first, reserved_hosts.trait(self.until))

    def test_not_for_preemptible_ones(self) -> None:
        said = "2 GPUs asked for are free only on hosts that keep them from preemptible instances"
        self.assertIn(said, self.refusal(self.SPOT))
        self.assertEqual({self.of_first}, self.taken(self.run_filter({"gpus": "= 2"})))
        self.placement.drain(self.first)
        self.assertIn("only on hosts that are drained", self.refusal(self.SPOT))
        second = self.placement.add_group(self.placement.add_host("host2"), 8)
        self.assertEqual({second}, self.taken(self.run_filter(self.SPOT)))

    def test_until_the_time_is_over(self) -> None:
        """Whoever set the trait, and is gone"""
        timeutils.set_time_override(self.until)
        self.addCleanup(timeutils.clear_time_override)
        self.assertEqual({self.of_first}, self.taken(self.run_filter(self.SPOT)))


class NeverTooStrictTest(RequestFilterTestCase):
    """What Nova's own query finds a candidate for is not refused."""

    def test_traits_of_the_host_beside_those_of_gpus(self) -> None:
        host = self.placement.add_host("host1")
        self.placement.add_group(host, 8)
        self.placement._put("/traits/CUSTOM_GPU_RACK", None)
        self.placement._put(
            f"/resource_providers/{host}/traits",
            {
                "resource_provider_generation": 2,
                "traits": ["HW_CPU_X86_AVX2", "CUSTOM_GPU_RACK", "HW_GPU_API_VULKAN"],
            },
        )
        for trait in ("HW_CPU_X86_AVX2", "CUSTOM_GPU_RACK", "HW_GPU_API_VULKAN"):
            with self.subTest(trait=trait):
                spec = self.run_filter({"gpus": "= 2", f"trait:{trait}": "required"})
                self.assertEqual(1, len(self.candidates(spec)))

    def test_traits_of_an_operators_making_on_the_gpus(self) -> None:
        group = self.placement.add_group(self.placement.add_host("host1"), 8)
        url = f"/resource_providers/{group}/traits"
        before = self.placement.api.get(url, version="1.36").body
        for trait in ("CUSTOM_POOL_A", "CUSTOM_HW_GPU_CUDA_COMPUTE_CAPABILITY_V9_0"):
            self.placement._put(f"/traits/{trait}", None)
            before["traits"].append(trait)
        self.placement._put(url, before)
        for trait in before["traits"]:
            with self.subTest(trait=trait):
                spec = self.run_filter({"gpus": "= 2", f"trait:{trait}": "required"})
                self.assertEqual({group}, self.taken(spec))
                spec = self.run_filter({"gpus": "= 2"}, image_traits=[trait])
                self.assertEqual({group}, self.taken(spec))

    def test_pinned_cpus_on_hosts_that_report_none(self) -> None:
        self.placement.add_group(self.placement.add_host("host1"), 8)
        pinned = {"gpus": "= 2", "hw:cpu_policy": "dedicated"}
        self.flags(disable_fallback_pcpu_query=False, group="workarounds")
        self.run_filter(pinned)
        self.flags(disable_fallback_pcpu_query=True, group="workarounds")
        self.assertIn("fitting GPUs are free", self.refusal(pinned))

    def test_groups_of_other_devices_are_left_to_nova(self) -> None:
        self.placement.add_group(self.placement.add_host("host1"), 8)
        spec = request_spec({"gpus": "= 2", "resources_net:CUSTOM_NIC": "1"})
        spec.requested_resources = [
            objects.RequestGroup(requester_id=uuids.port, resources={"CUSTOM_NIC": 1})
        ]
        self.run_both(spec)

    def test_without_an_answer_the_boot_goes_on(self) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise ks_exc.ConnectFailure("nobody there")

        client = "nova.scheduler.client.report.SchedulerReportClient.get"
        self.useFixture(fixtures.MonkeyPatch(client, fail))
        spec = self.run_filter({"gpus": "= 2", "gpu_arch": "s== fermi"})
        self.assertEqual("required", spec.flavor.extra_specs[f"trait_nova_gpu:{FERMI}"])
        # A condition that cannot be put to Placement is not dropped.
        text = self.refusal({"gpus": "= 2", "gpu_arch": "s!= fermi"})
        self.assertIn("Placement does not say which GPUs there are", text)
