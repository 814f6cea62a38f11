# SPDX-License-Identifier: Apache-2.0
"""Over a real Placement, asked by openstacksdk; what Nova says of its hosts is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fixtures
from keystoneauth1 import session
from nova import test
from openstack import connection

from nova_gpu.core import names
from nova_gpu.core.flavor import request
from nova_gpu.core.topology import affinity
from osc_gpu import hosts
from osc_gpu.resource_request import Size
from tests.fixtures.cloud_gpus import PlacementWithGPUs
from tests.functional.sdk import Auth

_SMALL = Size(vcpus=4, ram=512, disk=10, ephemeral=0, swap=0)


class HostsTestCase(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(PlacementWithGPUs())
        self.nodes: list[Any] = []

    def add_host(self, name: str, *, state: str = "up", status: str = "enabled") -> str:
        uuid = self.placement.add_host(name, vcpus=16)
        details = {"host": name, "disabled_reason": "moved" if status == "disabled" else None}
        self.nodes.append(
            SimpleNamespace(id=uuid, name=name, state=state, status=status, service_details=details)
        )
        return uuid

    def cloud(self) -> Any:
        endpoints = {"placement": self.placement.endpoint}
        real = connection.Connection(
            session=session.Session(auth=Auth(endpoints, {"X-Auth-Token": "admin"}))
        )
        return SimpleNamespace(placement=real.placement, compute=None)

    def answers(self, **words: str) -> dict[str, tuple[int, str]]:
        self.useFixture(fixtures.MockPatchObject(hosts, "listed_nodes", lambda _: self.nodes))
        answers = hosts.answers(self.cloud(), _SMALL, request.of(words))
        return {answer.host: (answer.instances, answer.reason) for answer in answers}


class HostsTest(HostsTestCase):
    def test_what_each_host_could_take(self) -> None:
        free, ill = self.add_host("free"), self.add_host("ill")
        self.add_host("none")
        self.placement.add_group(free, 8)
        self.placement.add_group(ill, 8, reserved=7)
        self.placement.add_group(self.add_host("full"), 8, reserved=1, used=6)
        for name, state, status in (("down", "down", "enabled"), ("off", "up", "disabled")):
            self.placement.add_group(self.add_host(name, state=state, status=status), 8)
        stranger = self.placement.add_host("stranger")
        self.placement.add_group(stranger, 8)
        self.assertEqual(
            {
                "free": (4, "no more GPUs"),
                "ill": (0, "2 GPUs asked for, 1 of 8 free (7 out of service)"),
                "full": (0, "2 GPUs asked for, 1 of 8 free (1 out of service)"),
                "down": (0, "down"),
                "off": (0, "disabled: moved"),
                "stranger": (0, "Nova has no such host"),
            },
            self.answers(gpus="= 2", gpu_arch="s== fermi"),
        )
        of_processors = (4, "4 VCPU asked for, 0 free after 4")
        self.assertEqual(of_processors, self.answers(gpus="= 1")["free"])

    def test_conditions_and_several_groups(self) -> None:
        both, other = self.add_host("both"), self.add_host("other")
        self.placement.add_group(both, 4)
        self.placement.add_group(both, 2, "kepler", product_id="1023")
        self.placement.add_group(other, 8, "kepler", product_id="1023")
        self.assertEqual(
            {"both": (2, "no more GPUs"), "other": (0, "architecture kepler, not fermi")},
            self.answers(gpus="= 2", gpu_arch="s!= kepler"),
        )
        two_kinds = {
            "resources1:PGPU": "1",
            "trait1:CUSTOM_GPU_ARCH_FERMI": "required",
            "resources2:PGPU": "1",
            "trait2:CUSTOM_GPU_ARCH_KEPLER": "required",
            "group_policy": "isolate",
        }
        self.assertEqual(
            {"both": (2, "no more GPUs"), "other": (0, "architecture kepler, not fermi")},
            self.answers(**two_kinds),
        )

    def test_vgpus(self) -> None:
        one, other = self.add_host("one"), self.add_host("other")
        self.placement.add_group(one, 4)
        self.placement.add_vgpus(one, 8, "nvidia-35", used=5)
        self.placement.add_vgpus(other, 2, "nvidia-36")
        self.assertEqual(
            {"one": (1, "no more vGPUs"), "other": (0, "vGPU type nvidia_36, not nvidia_35")},
            self.answers(vgpus="2", vgpu_type="nvidia-35"),
        )
        self.assertEqual(
            {
                "one": (0, "4 vGPUs asked for, 3 of 8 free"),
                "other": (0, "4 vGPUs asked for, it has 2"),
            },
            self.answers(**{"resources:VGPU": "4"}),
        )
        self.assertEqual({"one": (4, "no more GPUs")}, self.answers(gpus="1"))
        for why, words in (
            ("", {"resources:VGPU": "8"}),
            ("no host has 9 vGPUs in service", {"resources:VGPU": "9"}),
            ("no host has 9 vGPUs in service", {"gpus": "4", "vgpus": "9"}),
            ("no host has 5 GPUs in service", {"gpus": "5", "vgpus": "2"}),
        ):
            self.assertEqual(why, hosts.why_never(self.cloud(), _SMALL, request.of(words)))

    def test_nodes_of_cells(self) -> None:
        """Two nodes with four of eight GPUs each; a host that knows no nodes"""
        pinned = {"hw:cpu_policy": "dedicated"}
        policy = {name: {affinity.EXTRA_SPEC: name} for name in affinity.Policy}
        board = {f"{names.TRAIT_NUMA_ISLAND}4"}
        self.placement.add_group(self.add_host("one"), 8, reserved=1, sets=board)
        self.placement.add_group(self.add_host("other"), 8, "kepler", sets=board)
        self.placement.add_group(self.add_host("unknown"), 2)
        remedy = f"{affinity.EXTRA_SPEC}=preferred"
        for words, why in (
            ({"gpus": "4", **pinned}, ""),
            ({"gpus": "5"}, ""),
            (
                {"gpus": "5", **pinned},
                f"no host has 5 GPUs on one NUMA node ({affinity.EXTRA_SPEC}=legacy); add "
                f"hw:numa_nodes=2 or {remedy}",
            ),
            ({"gpus": "5", **pinned, "hw:numa_nodes": "2"}, ""),
            ({"gpus": "8", **pinned, **policy["required"]}, "=required); add hw:numa_nodes=2 or"),
            # One of the fermis is out of service.
            (
                {"gpus": "8", "gpu_arch": "fermi", **pinned, "hw:numa_nodes": "2"},
                f"8 GPUs (architecture fermi) on 2 NUMA nodes ({affinity.EXTRA_SPEC}=legacy); add "
                f"{remedy}",
            ),
            ({"gpus": "5", **pinned, **policy["preferred"]}, ""),
            ({"gpus": "5", **pinned, **policy["socket"]}, ""),
            ({"vgpus": "5", **pinned}, ""),
        ):
            with self.subTest(words):
                reason = hosts.too_few_nodes(self.cloud(), _SMALL, request.of(words))
                self.assertIn(why, reason)
                self.assertEqual(bool(why), bool(reason))
