# SPDX-License-Identifier: Apache-2.0
"""The blueprint's scenario: a flavor asks for GPUs, an instance has them, and nobody else."""

from __future__ import annotations

from typing import Any

from tempest import config, test
from tempest.common import waiters
from tempest.lib import decorators
from tempest.lib import exceptions as lib_exc
from tempest.lib.common import api_microversion_fixture
from tempest.lib.common.utils import data_utils

CONF = config.CONF

# From here on the API judges extra specs; instances without a network are older.
_MICROVERSION = "2.86"
_MOST_GPUS = 1024


class GPUServersTest(test.BaseTestCase):
    credentials = ("primary", "admin")

    @classmethod
    def setup_clients(cls) -> None:
        super().setup_clients()
        cls.servers = cls.os_primary.servers_client
        cls.flavors = cls.os_admin.flavors_client
        cls.placement = cls.os_admin.placement_client

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            api_microversion_fixture.APIMicroversionFixture(compute_microversion=_MICROVERSION)
        )

    def words(self, **more: str) -> dict[str, str]:
        """As the blueprint has them"""
        found = {"gpus": f"= {CONF.nova_gpu.gpus}"}
        if CONF.nova_gpu.architecture:
            found["gpu_arch"] = f"s== {CONF.nova_gpu.architecture}"
        if CONF.nova_gpu.hypervisor:
            found["hypervisor"] = f"s== {CONF.nova_gpu.hypervisor}"
        return found | more

    def flavor(self, **words: str) -> str:
        asked = CONF.nova_gpu
        made = self.flavors.create_flavor(
            name=data_utils.rand_name("gpu"), vcpus=asked.vcpus, ram=asked.ram, disk=asked.disk
        )["flavor"]
        self.addCleanup(self.flavors.delete_flavor, made["id"])
        if words:
            self.flavors.set_flavor_extra_spec(made["id"], **words)
        return str(made["id"])

    def boot(self, flavor: str, status: str = "ACTIVE") -> str:
        server = self.servers.create_server(
            name=data_utils.rand_name("gpu"),
            imageRef=CONF.compute.image_ref,
            flavorRef=flavor,
            networks="auto" if CONF.nova_gpu.networks else "none",
        )["server"]
        self.addCleanup(self.delete, server["id"])
        waiters.wait_for_server_status(
            self.servers, server["id"], status, raise_on_error=status != "ERROR"
        )
        return str(server["id"])

    def delete(self, server: str) -> None:
        try:
            self.servers.delete_server(server)
            waiters.wait_for_server_termination(self.servers, server)
        except lib_exc.NotFound:
            pass

    def counted(self, server: str) -> int:
        """How many GPUs Placement counts for the instance"""
        allocations: dict[str, Any] = self.placement.list_allocations(server)["allocations"]
        return sum(each["resources"].get("PGPU", 0) for each in allocations.values())

    @decorators.idempotent_id("6b9f2a4e-3a0d-4d0c-9b1e-2f5c7a8e1d30")
    @decorators.attr(type="smoke")
    def test_an_instance_has_its_gpus_until_it_is_deleted(self) -> None:
        server = self.boot(self.flavor(**self.words()))
        self.assertEqual(CONF.nova_gpu.gpus, self.counted(server))
        self.delete(server)
        self.assertEqual(0, self.counted(server))

    @decorators.idempotent_id("0f4d3f0e-8c53-4b8e-8d0a-5be0c1b6a7f2")
    def test_it_keeps_them(self) -> None:
        server = self.boot(self.flavor(**self.words()))
        for kind in ("SOFT", "HARD"):
            self.servers.reboot_server(server, type=kind)
            waiters.wait_for_server_status(self.servers, server, "ACTIVE")
        self.servers.stop_server(server)
        waiters.wait_for_server_status(self.servers, server, "SHUTOFF")
        self.assertEqual(CONF.nova_gpu.gpus, self.counted(server))
        self.servers.start_server(server)
        waiters.wait_for_server_status(self.servers, server, "ACTIVE")
        self.servers.rebuild_server(server, CONF.compute.image_ref)
        waiters.wait_for_server_status(self.servers, server, "ACTIVE")
        self.assertEqual(CONF.nova_gpu.gpus, self.counted(server))

    @decorators.idempotent_id("c1f3c6c2-2f0d-4f43-8f43-7c9f8b1f5f11")
    def test_it_gives_them_back_when_it_is_offloaded(self) -> None:
        if not CONF.compute_feature_enabled.shelve:
            raise self.skipException("Shelve is not available")
        server = self.boot(self.flavor(**self.words()))
        self.servers.shelve_server(server)
        offloaded = ("SHELVED", "SHELVED_OFFLOADED")
        waiters.wait_for_server_status(
            self.servers, server, offloaded[CONF.compute.shelved_offload_time == 0]
        )
        if CONF.compute.shelved_offload_time:
            self.servers.shelve_offload_server(server)
            waiters.wait_for_server_status(self.servers, server, offloaded[1])
        self.assertEqual(0, self.counted(server))
        self.servers.unshelve_server(server)
        waiters.wait_for_server_status(self.servers, server, "ACTIVE")
        self.assertEqual(CONF.nova_gpu.gpus, self.counted(server))

    @decorators.idempotent_id("4a0e9d52-7d61-49d3-9d7a-0a5b8d3c2e64")
    def test_too_many_are_refused_with_the_reason(self) -> None:
        words = self.words(gpus=f"= {_MOST_GPUS}")
        server = self.boot(self.flavor(**words), status="ERROR")
        fault = self.servers.show_server(server)["server"]["fault"]["message"]
        self.assertIn(f"{_MOST_GPUS} GPUs", fault)
        self.assertIn("the most in one host is", fault)

    @decorators.idempotent_id("9e7c5b0a-1c41-4fd7-8f6d-3b2a9c8d7e05")
    def test_what_no_host_has_is_refused_with_what_there_is(self) -> None:
        words = self.words(gpu_arch="s== nonesuch")
        server = self.boot(self.flavor(**words), status="ERROR")
        fault = self.servers.show_server(server)["server"]["fault"]["message"]
        self.assertIn("gpu_arch nonesuch", fault)
        self.assertIn("there are:", fault)

    @decorators.idempotent_id("b2d1f7c3-5e0b-4a55-9a37-6d4c3b2a1f90")
    def test_the_api_refuses_what_means_nothing(self) -> None:
        flavor = self.flavor()
        for key, value in (("gpus", "two"), ("gpu_arch", "s< fermi"), ("gpu:topology", "near")):
            refused = self.assertRaises(
                lib_exc.BadRequest, self.flavors.set_flavor_extra_spec, flavor, **{key: value}
            )
            self.assertIn(key, str(refused))

    @decorators.idempotent_id("7d5a3c1e-9b8f-4e2d-a6c4-1f0e9d8c7b6a")
    def test_an_image_that_needs_a_gpu(self) -> None:
        images = self.os_admin.image_client_v2
        if not images.show_image(CONF.compute.image_ref).get("visibility"):
            raise self.skipException("The image cannot be read")
        trait = "trait:CUSTOM_GPU"
        patch = [{"add": f"/{trait}", "value": "required"}]
        images.update_image(CONF.compute.image_ref, patch)
        self.addCleanup(images.update_image, CONF.compute.image_ref, [{"remove": f"/{trait}"}])
        self.boot(self.flavor(), status="ERROR")
        self.assertEqual(CONF.nova_gpu.gpus, self.counted(self.boot(self.flavor(**self.words()))))
