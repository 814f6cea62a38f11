# SPDX-License-Identifier: Apache-2.0
"""Virtual functions with a vGPU type and no mediated device, from the provider tree to the guest
and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from unittest import mock

from tests.fixtures import hosts, nvml, pci, profiling_kernel, vgpu
from tests.functional import profiled
from tests.functional.base import Server
from tests.functional.profiled import FIRST, SECOND, WHOLE, slots

EMPTY = {1145: (8, 0, 0), 1147: (8, 0, 0), 1155: (4, 0, 0), 1156: (2, 0, 0)}


class RoadTest(profiled.ProfiledServersTestBase):
    HOSTS = ("host1",)

    def test_there_and_back(self) -> None:
        self.assertEqual(EMPTY, self.inventories())
        self.assertInventory(total=1)  # the card that has no functions
        one = self.boot(self.of_type(1155))
        self.assertVGPUs(one, slots(1155, FIRST[0]))
        self.assertEqual([], self.rendered(one))
        self.assertSent("gpu.claim", one, slots(1155, FIRST[0]))
        two = self.boot(self.flavor(vgpus="= 2", vgpu_type="NVIDIA L40S-24Q"))
        self.assertVGPUs(two, slots(1155, FIRST[1], SECOND[0]))
        self.period()
        # The driver makes vGPUs of one type at the functions of a card.
        taken = {1145: (8, 8, 0), 1147: (8, 8, 0), 1155: (4, 0, 3), 1156: (2, 2, 0)}
        self.assertEqual(taken, self.inventories())
        # A card of which the driver names no type any more, and another service
        self.restart_host("host1")
        self.period()
        self.assertEqual(taken, self.inventories())
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        for server in (one, two, whole):
            self._delete_server(server)
        self.assertSent("gpu.release", two, slots(1155, FIRST[1], SECOND[0]))
        self.assertEqual({}, self.kernels["host1"].made)
        self.period()
        self.assertEqual(EMPTY, self.inventories())
        for number in (1156, 1147, 1155):  # round after round, of other types
            server = self.boot(self.of_type(number))
            self.assertVGPUs(server, slots(number, FIRST[0]))
            self._delete_server(server)
            self.assertEqual({}, self.kernels["host1"].made)
            self.period()
        self.assertNotIn("ERROR [nova_gpu", self.log())

    def assertSent(self, event_type: str, server: Server, addresses: list[str]) -> None:
        """The only notification about *server* since the last call"""
        notifications = [
            notification
            for notification in self.sent()
            if notification.payload["instance_uuid"] == server["id"]
        ]
        (sent,) = [
            notification for notification in notifications if notification.event_type == event_type
        ]
        payload = {"count": len(addresses), "addresses": addresses, "vgpu_type": "nvidia-1155"}
        payload |= {"host": "host1", "product_id": "10de:26b9", "product": "L40S"}
        self.assertEqual(payload, {key: sent.payload[key] for key in payload})


class AnotherHostTest(profiled.ProfiledServersTestBase):
    def test_a_driver_that_gives_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        self.kernels["host1"].refused |= {*FIRST, *SECOND}
        servers = [self.boot(self.of_type(1156)) for _ in range(2)]
        for server, function in zip(servers, (FIRST[0], SECOND[0]), strict=True):
            self.assertVGPUs(server, slots(1156, function), "host2")


class ParamsTest(profiled.ProfiledServersTestBase):
    def prepare(self, host: hosts.Host) -> None:
        super().prepare(host)
        for function in (*FIRST, *SECOND):
            pci.write(host.path(function) / "nvidia/vgpu_params", "\n")

    def params(self, function: str) -> str:
        return (self.hosts["host1"].path(function) / "nvidia/vgpu_params").read_text().strip()

    def test_no_tenant_gets_those_of_another(self) -> None:
        self.start_host()
        kind = {"vgpus": "= 1", "vgpu_type": "NVIDIA L40S-24Q"}
        words = {"gpu:vgpu_params": "enable_profiling=1,enable_uvm=1"}
        one = self.boot(self.flavor(**kind, **words))
        self.assertEqual(words["gpu:vgpu_params"], self.params(FIRST[0]))
        with mock.patch.object(self.api, "project_id", "other-tenant"):
            beside = self.boot(self.flavor(**kind))
            self.assertVGPUs(beside, slots(1155, FIRST[1]))
            self.assertEqual("", self.params(FIRST[1]))
            self._delete_server(one)
            after = self.boot(self.flavor(**kind))
            self.assertVGPUs(after, slots(1155, FIRST[0]))
            self.assertEqual("", self.params(FIRST[0]))
        self.flags(group="gpu", vgpu_params=["enable_uvm"])
        self.restart_host("host1")
        self.boot_refused(self.flavor(**kind, **words))
        self.assertIn("[gpu]vgpu_params does not permit enable_profiling", self.log())


# By their size in 48 parts of a card (NVIDIA's vGPU user guide, mixed-size mode); ids are made up
SIZES = {
    number: (48 // most, name)
    for number, most, name in (
        *((1156, 1, "48C"), (1155, 2, "24C"), (1154, 2, "16C"), (1152, 4, "8C")),
        (1148, 8, "4C"),
    )
}


def by_size(number: int, made: Iterable[tuple[int, int]]) -> list[int]:
    size, taken = SIZES[number][0], [range(at, at + SIZES[n][0]) for n, at in made]
    places = range(0, 48, size)
    return [
        at for at in places if not any(at in t or t.start in range(at, at + size) for t in taken)
    ]


class RuledServersTestBase(profiled.ProfiledServersTestBase):
    """A host whose card follows *RULE*, and whose library tells its numbers"""

    HOSTS = ()
    RULE: tuple[profiling_kernel.Rule, str]
    NAMES: Mapping[int, str]

    def setUp(self) -> None:
        self.library = self.useFixture(nvml.Library())
        super().setUp()
        self.flags(nvml=True, group="gpu")

    def prepare(self, host: hosts.Host) -> None:
        kernel = profiling_kernel.ProfilingKernel(host, self.NAMES, self.RULE)
        self.kernels["host1"] = self.useFixture(kernel)

    def free(self) -> dict[int, int]:
        return {
            n: total - reserved - used for n, (total, reserved, used) in self.inventories().items()
        }

    def assertFree(self, **expected: int) -> None:
        """Placement says what the driver then makes, whoever asks for it."""
        self.period()
        self.assertEqual(
            expected, {self.NAMES[n].rpartition("-")[2]: f for n, f in self.free().items()}
        )

    def of(self, name: str, count: int = 1) -> str:
        (number,) = (n for n, type_name in self.NAMES.items() if type_name.endswith(f"-{name}"))
        return self.flavor(vgpus=f"= {count}", vgpu_type=f"s== nvidia-{number}")


class SeveralSizesTest(RuledServersTestBase):
    """vGPUs of several sizes, which an option allows"""

    MACHINE = "cpu-only"
    RULE = by_size, "placement_id"
    NAMES: Mapping[int, str] = {
        number: f"NVIDIA L40S-{name}" for number, (_, name) in SIZES.items()
    }
    CARD = "0000:3b:00.0"

    def prepare(self, host: hosts.Host) -> None:
        host.add_gpu(self.CARD, "10de", "26b9", totalvfs=12, minor=0)
        for function in vgpu.add_functions(host, self.CARD, 12):
            host.register_with_vfio(function)
        super().prepare(host)

    def tell(self, **more: str) -> None:
        types, lines = {}, {"mixed": "1", **more}
        for number, (size, _) in SIZES.items():
            types[number] = nvml.Type(self.NAMES[number], size << 10, 48 // size)
            places = " ".join(map(str, range(0, 48, size)))
            lines[f"vgpu.{number}.placements"] = f"{size}:{places}"
        card = nvml.Card(self.CARD, "NVIDIA L40S", 8, 46068, "8.9", types=types, more=lines)
        self.library.say(card)

    def test_two_tenants_share_a_card(self) -> None:
        self.flags(
            virtual_functions=["10de:26b9=12"],
            vgpu_mixed_sizes=["10de:26b9=true"],
            vgpu_scheduler=["10de:26b9=equal_share"],
            group="gpu",
        )
        self.tell(scheduler_refused="3")
        self.start_host()
        self.boot_refused(self.of("16C"))
        self.assertIn("[gpu]vgpu_mixed_sizes and [gpu]vgpu_scheduler not set", self.log())
        self.tell()
        self.restart_host("host1")
        empty = {"48C": 1, "24C": 2, "16C": 2, "8C": 4, "4C": 8}
        half = {"48C": 0, "24C": 1, "16C": 1, "8C": 2, "4C": 4}
        self.assertFree(**empty)
        one = self.boot(self.of("16C"))
        self.assertFree(**half)
        with mock.patch.object(self.api, "project_id", "other-tenant"):
            two = self.boot(self.of("8C", 2))
            self.assertFree(**dict.fromkeys(empty, 0))
            self.assertIn("none free", self.boot_refused(self.of("8C")))
        self._delete_server(one)
        self.assertFree(**half)
        self._delete_server(two)
        self.assertFree(**empty)
        self.boot(self.of("4C", 4))
        self.assertFree(**half)
        self.assertNotIn("failed starts", self.log())


# How many of each type one GPU instance of a RTX PRO 6000 carries (bigstack-oss/cubecos)
BY_INSTANCE = {3201: 12, 3202: 8, 3210: 1}


def by_instance(number: int, made: Iterable[tuple[int, int]]) -> list[int]:
    listed = list(made)
    there = {gi: [n for n, at in listed if at == gi] for gi in (1, 2)}
    return [
        gi
        for gi, types in there.items()
        if {number}.issuperset(types) and len(types) < BY_INSTANCE[number]
    ]


class GPUInstancesTest(RuledServersTestBase):
    """vGPUs that share GPU instances by time, of one size each"""

    MACHINE = "cpu-only"
    PRODUCT = "10de_2bb5"
    RULE = by_instance, "gpu_instance_id"
    NAMES: Mapping[int, str] = {
        n: t.name for n, t in nvml.rtx_pro_6000()[0].types.items() if n in BY_INSTANCE
    }
    CARD = nvml.rtx_pro_6000()[0].address

    def prepare(self, host: hosts.Host) -> None:
        host.add_gpu(self.CARD, "10de", "2bb5", totalvfs=20, minor=0, mig=[(1, 0), (2, 0)])
        for function in vgpu.add_functions(host, self.CARD, 20):
            host.register_with_vfio(function)
        super().prepare(host)

    def test_two_tenants_share_a_card(self) -> None:
        self.library.say(*nvml.rtx_pro_6000(2))
        self.start_host()
        self.assertFree(**{"2Q": 20, "3Q": 16, "24Q": 2})
        one = self.boot(self.of("3Q"))
        self.assertFree(**{"2Q": 12, "3Q": 15, "24Q": 1})
        with mock.patch.object(self.api, "project_id", "other-tenant"):
            self.boot(self.of("24Q"))
            self.assertFree(**{"2Q": 0, "3Q": 7, "24Q": 0})
            self.assertIn("none free", self.boot_refused(self.of("2Q")))
            several = self.boot(self.of("3Q", 7))
            self.assertFree(**{"2Q": 0, "3Q": 0, "24Q": 0})
        self._delete_server(several)
        self._delete_server(one)
        self.assertFree(**{"2Q": 12, "3Q": 8, "24Q": 1})
