# SPDX-License-Identifier: Apache-2.0
"""Virtual functions with a vGPU type and no mediated device, from the provider tree to the guest
and back."""

from __future__ import annotations

from typing import Any

from nova_gpu.virt.health import failed_starts
from tests.functional import alone, profiled
from tests.functional.base import Server
from tests.functional.profiled import FIRST, SECOND, WHOLE, slots

EMPTY = {1145: (8, 0, 0), 1147: (8, 0, 0), 1155: (4, 0, 0), 1156: (2, 0, 0)}


class RoadTest(alone.Alone, profiled.ProfiledServersTestBase):
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
        found = [each for each in self.sent() if each.payload["instance_uuid"] == server["id"]]
        (sent,) = [each for each in found if each.event_type == event_type]
        payload = {"count": len(addresses), "addresses": addresses, "vgpu_type": "nvidia-1155"}
        payload |= {"host": "host1", "product_id": "10de:26b9", "product": "L40S"}
        self.assertEqual(payload, {key: sent.payload[key] for key in payload})


class QEMUServersTestBase(profiled.ProfiledServersTestBase):
    def qemu_says(self, text: str, of: str = "") -> None:
        """Let QEMU end with *text* where it starts with the function *of*, or with any."""
        bus, function = int(of[5:7] or "0", 16), of[-1:]
        mark = f'bus="0x{bus:02x}" slot="0x00" function="0x{function}"' if of else "<hostdev"
        self.connection().says = lambda xml: text if mark in xml else None


class StartsTest(QEMUServersTestBase):
    def test_qemu_ends_because_of_the_function(self) -> None:
        self.start_host("host1")
        self.qemu_says(
            f"-device vfio-pci,host={FIRST[0]}: vfio {FIRST[0]}: error getting device from group "
            "60: Input/output error",
            of=FIRST[0],
        )
        for _ in range(3):
            self.boot(self.of_type(1155), expected_state="ERROR")
        self.assertVGPUs(self.boot(self.of_type(1155)), slots(1155, FIRST[1]))
        self.leaves = dict.fromkeys(("reserved",), "the function is out until it is enabled anew")


class NotTheFunctionsFaultTest(QEMUServersTestBase):
    """A failed start that the request or the host decides keeps no function from other guests."""

    HOSTS = ("host1",)

    def boot_failing(self, flavor: str, **kwargs: Any) -> str:
        """Let as many guests fail in a row as withhold a function, and return the last fault."""
        for _ in range(failed_starts.MOST):
            server = self.boot(flavor, expected_state="ERROR", **kwargs)
        self.period()
        self.assertNotIn("New instances do not get", self.log())
        self.assertEqual(EMPTY, self.inventories())
        return str(self._show_server(server)["fault"]["message"])

    def test_image_that_libvirt_refuses(self) -> None:
        image = self.image(hw_machine_type="q35", hw_disk_bus="ide")
        fault = self.boot_failing(self.of_type(1155), image_uuid=image)
        self.assertIn("IDE controllers are unsupported for this QEMU binary", fault)
        self.assertNotIn("Exceeded maximum number of retries", fault)
        self.assertVGPUs(self.boot(self.of_type(1155)), slots(1155, FIRST[0]))

    def test_what_another_host_or_flavor_decides(self) -> None:
        """QEMU names the function where the guest's memory is not locked for it, and the second one
        where a guest can have one of its type."""
        failed = "vfio {}: error getting device from group 61: Input/output error"
        for text, count, logged, told in (
            (
                "cannot set up guest memory 'pc.ram': Cannot allocate memory",
                1,
                "too little free memory for the guest",
                "too little free memory for the guest; try again later, or take a flavor with less",
            ),
            (
                f"vfio {FIRST[0]}: failed to setup container for group 60: memory listener "
                "initialization failed: Region pc.ram: vfio_container_dma_map(0x1, 0x0, 0xa0000, "
                "0x2) = -12 (Cannot allocate memory)",
                1,
                f"{FIRST[0]}/nvidia-1155/0 cannot be given: the guest's memory cannot be locked",
                "a GPU cannot be given: the guest's memory cannot be locked for it; try again",
            ),
            (
                failed.format(FIRST[1]),
                2,
                "NVIDIA's vGPU manager refuses it",
                "a GPU cannot be given: NVIDIA's vGPU manager refuses it; try again",
            ),
        ):
            self.qemu_says(text)
            fault = self.boot_failing(self.of_type(1155, count=count))
            self.assertIn(logged, self.log())
            self.assertIn(told, fault)
            self.assertNotIn(FIRST[0], fault)
            self.assertLess(len(fault), 256)


class AnotherHostTest(profiled.ProfiledServersTestBase):
    def test_a_driver_that_gives_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        self.kernels["host1"].refused |= {*FIRST, *SECOND}
        servers = [self.boot(self.of_type(1156)) for _ in range(2)]
        for server, function in zip(servers, (FIRST[0], SECOND[0]), strict=True):
            self.assertVGPUs(server, slots(1156, function), "host2")
