# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any
from unittest import mock
from urllib import parse

import fixtures
from keystoneauth1 import exceptions as ks_exc
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects, test
from nova.scheduler import request_filter, utils
from nova.scheduler.client import report
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception
from nova_gpu.scheduler import placement, requested_gpus
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
            },
            {key: value for key, value in parse.parse_qsl(query) if key != "root_required"},
        )

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

    def test_a_flavor_without_gpus_is_left_alone(self) -> None:
        for specs in ({}, {"hypervisor": "s== LXC"}, {"resources:VGPU": "1"}):
            spec = request_spec(specs)
            with self.subTest(specs=specs):
                self.assertFalse(gpu_request_filter(self.context, spec))
                self.assertFalse(gpu_candidates_filter(self.context, spec))
                self.assertEqual(specs, spec.flavor.extra_specs)

    def test_an_image_that_requires_gpus_with_a_flavor_without(self) -> None:
        message = (
            "the image requires CUSTOM_GPU_ARCH_FERMI, and the flavor has no GPU; use a flavor"
        )
        self.assertIn(f"{exception.FINAL}{message}", self.refusal({}, image_traits=[FERMI]))
        # Traits that Nova's own hosts may have, and vGPUs of Nova's own
        for specs, traits in (
            ({}, ["HW_CPU_X86_AVX2"]),
            ({}, ["CUSTOM_GPU_RACK"]),
            ({"resources:VGPU": "1"}, [FERMI]),
        ):
            spec = request_spec(specs, image_traits=traits)
            self.assertFalse(gpu_candidates_filter(self.context, spec))

    def test_a_word_that_no_extension_has(self) -> None:
        specs = {"gpus": "= 2", "gpu:of_an_extension": "1"}
        patch = mock.patch.object(requested_gpus, "instance_with_flavor")
        with patch as instance_with_flavor:
            self.taken(self.run_filter(specs))  # An instance goes on, and may move.
            instance_with_flavor.return_value = None
            message = "gpu:of_an_extension='1': it is misspelt, or its extension is not installed"
            self.assertIn(f"{exception.FINAL}flavor property {message}", self.refusal(specs))
            self.taken(self.run_filter({"gpus": "= 2"}))  # as the page on refused requests advises

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

    def test_a_device_to_be_near_that_is_not_asked_for(self) -> None:
        self.placement.add_group(self.placement.add_host("host1"), 4, near=("nic",))
        spec = request_spec({"gpus": "1", "gpu:near": "nic", "gpu:near_policy": "required"})
        self.run_both(spec)
        spec.pci_requests = objects.InstancePCIRequests(requests=[])
        with self.assertRaisesRegex(nova_exception.RequestFilterFailed, "asks for no device"):
            self.run_both(spec)

    def test_peers(self) -> None:
        host = self.placement.add_host("host1")
        specs = {"gpus": "2", "gpu:peer_access": "required"}
        self.placement.add_group(host, 4)
        message = "no host has GPUs with gpu:peer_access over the root; there are: none"
        self.assertIn(message, self.refusal(specs))
        self.run_filter(specs | {"gpu:peer_access": "preferred"})
        self.run_filter(specs | {"gpus": "1"})
        having = self.placement.add_group(host, 4, product_id="1023", peers=True)
        self.assertEqual({having}, self.taken(self.run_filter(specs)))

        message = "which the image's img_hide_hypervisor_id hides"
        self.assertIn(message, self.refusal(specs, hidden=True))
        hiding = specs | {"hw:hide_hypervisor_id": "true"}
        self.assertIn("which hw:hide_hypervisor_id hides", self.refusal(hiding))

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
        self.placement.mark(host, "COMPUTE_STATUS_DISABLED")
        spec = request_spec({"gpus": "1"})
        spec.root_forbidden.add("COMPUTE_STATUS_DISABLED")
        self.check(spec, "free only on hosts that take no new instance: their compute service is")

    def test_services_that_are_down(self) -> None:
        """They are named if no other host has the GPUs, but for a host that is forced."""
        for number in range(2):
            host = self.placement.add_host(f"host{number}")
            self.placement.add_group(host, 8)
            self.services[host] = bool(number)
        spec = request_spec({"gpus": "1"})
        self.check(spec, None)
        self.services[host] = False
        message = "1 GPU asked for is free only on hosts that take no new instance: their compute "
        self.check(spec, f"{message}service is down")
        spec.requested_destination = objects.Destination(host="host1")
        self.check(spec, "the requested host takes no new instance: its compute service is down")
        spec = request_spec({"gpus": "1"})
        spec.force_hosts = ["host1"]
        self.check(spec, None)
        with fixtures.MonkeyPatch(
            "nova.context.scatter_gather_all_cells",
            lambda *args: {"1": [False], "2": nova_context.did_not_respond_sentinel},
        ):
            self.check(request_spec({"gpus": "1"}), None)

    def test_what_placement_refuses(self) -> None:
        self.placement.add_group(self.placement.add_host("host1"), 8)
        for specs, message in (
            ({"resources:CUSTOM_NOTHING": "1"}, "no host has CUSTOM_NOTHING"),
            ({f"trait1:{FERMI}": "required"}, "its request group asks for no resource"),
        ):
            with self.subTest(specs):
                self.assertIn(message, self.refusal({"gpus": "1"} | specs))
        self.run_filter({"gpus": "1", f"trait1:{FERMI}": "preferred"})

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

    def test_the_host_asked_for_is_the_one_spoken_of(self) -> None:
        for name, used in (("host1", 7), ("host2", 0)):
            self.nodes[f"compute-of-{name}"] = host = self.placement.add_host(name)
            self.placement.add_group(host, 8, used=used)
        self.placement.add_host("host3")
        for destination, part in (
            ({"host": "host1"}, "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7 in use)"),
            ({"host": "other", "node": "host1"}, "1 of 8 free"),
            ({"host": "compute-of-host1"}, "1 of 8 free"),
            ({"host": "host3"}, "the requested host has no GPUs"),
            ({"host": "host2"}, None),
            ({"host": "nobody-knows"}, None),
            ({"node": "host2"}, None),
        ):
            spec = request_spec({"gpus": "2"})
            spec.requested_destination = objects.Destination(**destination)
            with self.subTest(destination=destination):
                self.check(spec, part)
        for field, value, part in (
            ("force_hosts", ["host1"], "1 of 8"),
            ("force_hosts", ["compute-of-host1"], "1 of 8"),
            ("force_nodes", ["host1"], "1 of 8"),
            ("force_nodes", [], None),
        ):
            spec = request_spec({"gpus": "2"})
            setattr(spec, field, value)
            with self.subTest(field, value=value):
                self.check(spec, part)

    def check(self, spec: objects.RequestSpec, part: str | None) -> None:
        try:
            self.run_both(spec)
            self.assertIsNone(part)
        except nova_exception.RequestFilterFailed as e:
            self.assertIn(part or "nothing, for it should pass", self.logged(), e.message)

    def test_a_refusal_asks_placement_a_bounded_number_of_times(self) -> None:
        """Whatever the cloud's size, and however many groups a flavor has"""
        for number in range(12):
            host = self.placement.add_host(f"host{number}", vcpus=8)
            self.placement.add_group(host, 8, "fermi", used=4 if number < 3 else 8)
            self.placement.add_group(host, 8, "kepler", product_id="1023", used=8)
        urls: list[str] = []
        get = report.SchedulerReportClient.get

        def counting(this: report.SchedulerReportClient, url: str, **kwargs: Any) -> Any:
            urls.append(url)
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
        self.assertLess(len(urls), 30, urls)

    def test_no_word_of_hosts_or_other_instances(self) -> None:
        host = self.placement.add_host("secret-host")
        group = self.placement.add_group(host, 8, used=8)
        text = self.refusal({"gpus": "2"})
        for part in ("secret-host", host, group, "other"):
            self.assertNotIn(part, text)


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


class RequestedTest(test.NoDBTestCase):
    def test_devices_of_novas_own_passthrough(self) -> None:
        spec = request_spec({})
        self.assertIsNone(requested_gpus.from_spec(spec).pci_devices)
        pci_requests = [objects.InstancePCIRequest(count=count) for count in (1, 2)]
        for requests, count in ((None, None), ([], 0), (pci_requests, 3)):
            spec.pci_requests = (
                None if requests is None else objects.InstancePCIRequests(requests=requests)
            )
            self.assertEqual(count, requested_gpus.from_spec(spec).pci_devices)

    def test_what_came_without(self) -> None:
        bare = objects.RequestSpec(flavor=objects.Flavor(flavorid="read without"))
        for spec in (bare, objects.RequestSpec(flavor=bare.flavor, image=objects.ImageMeta())):
            request = requested_gpus.from_spec(spec)
            self.assertEqual((), request.flavor.requests)
            self.assertEqual((None, False), (request.unfit_machine_type, request.image_names_gpus))


class NobodyCouldTest(RequestFilterTestCase):
    """With a reason, which no filter can give; and before anything is done to an instance."""

    def setUp(self) -> None:
        super().setUp()
        host = self.placement.add_host("host1")
        self.qemu = self.placement.add_group(host, 8, "ada", hypervisor="QEMU")

    def test_all_hosts_are_kvm(self) -> None:
        for flavor in ({"gpus": "1"}, {"gpus": "1", "hypervisor": "KVM"}, {"resources:PGPU": "1"}):
            with self.subTest(flavor=flavor):
                fault = self.refusal(flavor, machine_type="pc-i440fx-9.2")
                self.assertIn("machine type is pc-i440fx-9.2", fault)
                self.assertIn("hw_machine_type=q35", fault)
        for fitting in (None, "q35"):
            self.assertEqual({self.qemu}, self.taken(self.run_filter(flavor, machine_type=fitting)))

    def test_containers_have_no_use_for_it(self) -> None:
        host = self.placement.add_host("host2")
        lxc = self.placement.add_group(host, 8, "fermi")
        for flavor in ({"gpus": "1"}, {"gpus": "1", "hypervisor": "<or> LXC <or> KVM"}):
            spec = self.run_filter(flavor, machine_type="pc")
            self.assertEqual({self.qemu, lxc}, self.taken(spec))
        spec = self.run_filter({"gpus": "1", "hypervisor": "LXC"}, machine_type="pc")
        self.assertEqual({lxc}, self.taken(spec))
        fault = self.refusal({"gpus": "1", "hypervisor": "s!= LXC"}, machine_type="pc")
        self.assertIn("machine type is pc", fault)
