# SPDX-License-Identifier: Apache-2.0
"""Cards that fall off the bus while somebody, or nobody, has them."""

from __future__ import annotations

from tests.functional import alone, base

LOST = base.FIRST_SOCKET[0]


class AssignedCardTest(alone.Alone, base.GPUServersTestBase):
    leaves = {"reserved": "the card is gone"}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self.hosts["host1"].remove(LOST)

    def assertKept(self) -> None:
        self.assertGPUs(self.server, [LOST])
        self.assertInventory(total=8, reserved=0, used=1)

    def assertNobodyElseIsHurt(self) -> None:
        plain = self.boot(self.flavor())
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.assertGPUs(plain, [])
        self.assertInventory(total=8, reserved=0, used=8)

    def test_it_stays_the_instances(self) -> None:
        self.period()
        self.assertKept()
        self.assertNobodyElseIsHurt()

    def test_it_stays_the_instances_over_a_service_restart(self) -> None:
        self.restart_host("host1")
        self.assertKept()
        self.assertNobodyElseIsHurt()

    def test_its_instance_does_not_start_without_it(self) -> None:
        self.period()
        self._stop_server(self.server)
        (said,) = self.refused({"os-start": None})
        self.assertIn("no longer on the PCI bus", said)
        self.assertNotEqual("ACTIVE", self._show_server(self.server)["status"])

    def test_it_is_reserved_once_its_instance_is_gone(self) -> None:
        self.period()
        self._delete_server(self.server)
        self.period()
        self.assertInventory(total=8, reserved=1, used=0)
        self.boot_refused(self.gpu_flavor(8))
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])

    def test_all_cards_of_the_group(self) -> None:
        for address in base.ALL[1:]:
            self.hosts["host1"].remove(address)
        self.restart_host("host1")
        self.assertGPUs(self.server, [LOST])
        self.assertEqual(1, self.inventory()["used"])
        inventory = self.inventory()
        self.assertEqual(inventory["total"] - inventory["reserved"], inventory["used"])
        self.assertGPUs(self.boot(self.flavor()), [])


class FreeCardTest(alone.Alone, base.GPUServersTestBase):
    leaves = {"reserved": "the card is gone"}  # noqa: RUF012
    HOSTS = ("host1",)

    def _lose(self) -> None:
        self.hosts["host1"].remove(LOST)
        self.period()

    def test_nobody_gets_it(self) -> None:
        self._lose()
        self.assertInventory(total=8, reserved=1, used=0)
        self.boot_refused(self.gpu_flavor(8))
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.boot_refused(self.gpu_flavor(1))

    def test_it_comes_back(self) -> None:
        self._lose()
        self.hosts["host1"].add_gpu(LOST, "10de", "1091", numa_node=0, minor=4)
        self.period()
        self.assertInventory(total=8, reserved=0, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_another_product_in_its_place(self) -> None:
        self.hosts["host1"].remove(LOST)
        self.hosts["host1"].add_gpu(LOST, "10de", "1023", numa_node=0, minor=4)
        self.period()
        kepler = self.boot(self.flavor(gpus="= 1", gpu_arch="s== kepler"))
        self.assertEqual([LOST], self.recorded(kepler))
        self.assertGPUs(self.boot(self.flavor(gpus="= 7", gpu_arch="s== fermi")), base.ALL[1:])

    def test_unreadable_host_keeps_what_was_known(self) -> None:
        unread = "that its card is clean cannot be proven while sysfs cannot be read"
        self.leaves = dict.fromkeys(("hold", "reserved"), unread)
        devices = self.hosts["host1"].devices
        devices.rename(devices.with_name("away"))
        self.period()
        self.assertInventory(total=8, reserved=0, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), [LOST])
