# SPDX-License-Identifier: Apache-2.0
"""Cards that the host drives until a guest needs them. The kernel is a stand-in; see its fixture.

The privileged functions and their child process are the real ones.
"""

from __future__ import annotations

from unittest import mock

from tests.fixtures import pci
from tests.functional import alone, kvm
from tests.functional.kvm import CARD, GUESTS, HOSTS, OTHER

_256_GIB = 256 << 10  # MiB
# What Nova does between the claim and the start of the guest
_PREPARED = "nova.compute.manager.ComputeManager._prep_block_device"


class _LateBinding(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.stand_in = self.start_driving_host()
        self.assertInventory(total=2)

    def assertDrivers(self, card: list[str], other: list[str]) -> None:
        self.assertEqual({CARD: card, OTHER: other}, {a: self.drivers(a) for a in (CARD, OTHER)})


class LateBindingTest(alone.Alone, _LateBinding):
    def _wait_until_bound(self, *args: object) -> dict[str, list[object]]:
        self._wait_for_assert(lambda: self.assertDrivers(GUESTS, HOSTS))
        return {"block_device_mapping": []}

    def test_bound_while_nova_prepares_the_rest(self) -> None:
        with mock.patch(_PREPARED, side_effect=self._wait_until_bound) as prepared:
            server = self.boot(self.gpu_flavor(1))
        prepared.assert_called_once()
        self.assertGPUs(server, [CARD])
        self.assertEqual(2, sum(each.endswith("vfio-pci") for each in self.stand_in.done))

    def test_the_host_has_it_back_where_nova_cannot_prepare_the_rest(self) -> None:
        bound = []

        def prepare(*args: object) -> None:
            bound.append(self._wait_until_bound())
            raise ValueError

        with mock.patch(_PREPARED, side_effect=prepare):
            self.assertIn("prepping block device", self.boot_refused(self.gpu_flavor(1)))
        self.assertTrue(bound)
        self.period()
        self.assertDrivers(HOSTS, HOSTS)
        self.assertInventory(total=2, used=0)

    def test_not_touched_where_the_guest_cannot_have_them_all(self) -> None:
        """Each has room in 40 address bits, both have not."""
        self.flags(cpu_mode="none", group="libvirt")
        for address in (CARD, OTHER):
            pci.write_bars(self.hosts["host1"].path(address), [(_256_GIB, True)] * 2)
        self.period()
        self.assertIn("40 address bits", self.boot_refused(self.gpu_flavor(2)))
        self.assertEqual([], self.stand_in.done)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), [CARD])

    def test_host_boot_takes_the_card_of_a_stopped_guest_again(self) -> None:
        self._stop_server(self.boot(self.gpu_flavor(1)))
        for function, driver in zip((CARD, CARD.replace(".0", ".1")), HOSTS, strict=True):
            self.hosts["host1"].bind(function, driver)
        self.stand_in.boot("00000000-0000-4000-8000-000000000001")
        self.restart_host("host1")
        self.assertDrivers(GUESTS, HOSTS)

    def test_card_that_cannot_be_had(self) -> None:
        """Of two cards the second refuses: the first goes back too."""
        self.leaves = {"reserved": "for some minutes it is not tried again"}
        self.stand_in.refused.add(f"{OTHER} vfio-pci")
        self.boot_refused(self.gpu_flavor(2))
        self.period()
        self.assertDrivers(HOSTS, HOSTS)
        self.assertIn(f"GPU {OTHER} was not bound", self.log())
        self.assertInventory(total=2, reserved=1, used=0)
        # Nor is it drawn again, until it is tried once more.
        self.assertGPUs(self.boot(self.gpu_flavor(1)), [CARD])
        self.period()
        self.assertIn("1 GPU asked for, none free", self.boot_refused(self.gpu_flavor(1)))

    def test_card_that_the_host_does_not_take_back(self) -> None:
        """Its instance can be deleted all the same, the next one has it, and it is tried again."""
        server = self.boot(self.gpu_flavor(1))
        self.stand_in.refused.add(f"{CARD} nouveau")
        self._delete_server(server)
        self.assertIn(f"Failed to return GPU {CARD} to the host's drivers", self.log())
        self.assertInventory(total=2, used=0)
        server = self.boot(self.gpu_flavor(1))
        self.assertGPUs(server, [CARD])
        self.assertDrivers(GUESTS, HOSTS)
        self._delete_server(server)
        self.stand_in.refused.clear()
        self.period()
        self.assertDrivers(HOSTS, HOSTS)
