# SPDX-License-Identifier: Apache-2.0
"""Virtual functions without types, which guests get as they are: from the provider tree to the
guest and back."""

from __future__ import annotations

from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.virt import counters
from tests.fixtures import hosts, sriov_kernel
from tests.functional import alone, divided, kvm, test_verify
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, WHOLE

FLAVOR = {"vgpus": "= 1", "vgpu_type": "s== vf"}


def functions(card: str, *numbers: int) -> list[str]:
    return [card.replace(".0", f".{number}") for number in numbers]


def slots(card: str, *numbers: int) -> list[str]:
    return [f"{each}/vf/0" for each in functions(card, *numbers)]


class PlainServersTestBase(test_verify.Verifying, divided.DividedServersTestBase):
    MACHINE = "flex-2"
    PROVIDER = "_gpu_8086_56c0_vgpu_vf"

    def prepare(self, host: hosts.Host) -> None:
        for card in (FIRST, SECOND):
            host.set_autoprobe(card, enabled=False)

    def assertGuestHas(self, server: Server, places: list[values.Slot], host: str) -> None:
        hostdevs = self.domain(server, host).xpath("devices/hostdev[@type='pci']")
        self.assertEqual(
            sorted(str(each.parent) for each in places), sorted(map(kvm.address, hostdevs))
        )
        self.assertEqual({"yes"} if places else set(), {e.get("managed") for e in hostdevs})

    def vgpus(self, host: str = "host1") -> tuple[int, int, int]:
        """Total, reserved and used"""
        return self.counts(self._get_provider_uuid_by_name(f"{host}{self.PROVIDER}"))


class RoadTest(alone.Alone, PlainServersTestBase):
    def test_there_and_back(self) -> None:
        self.assertEqual((6, 0, 0), self.vgpus())
        self.assertInventory(total=1)  # the card that has no functions
        one = self.boot(self.flavor(**FLAVOR))
        self.assertVGPUs(one, slots(FIRST, 1))
        two = self.boot(self.flavor(**FLAVOR | {"vgpus": "= 3"}))
        self.assertVGPUs(two, slots(FIRST, 2, 3) + slots(SECOND, 1))
        found = counters.read(self.state())
        self.assertEqual((0, 4), (found.claims, found.vgpu_claims))
        self.assertFound()
        self.restart_host("host1")
        self.period()
        self.assertEqual((6, 0, 4), self.vgpus())
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        self._reboot_server(two, hard=True)
        self._stop_server(two)
        self.period()
        self._start_server(two)
        self.assertVGPUs(two, slots(FIRST, 2, 3) + slots(SECOND, 1))
        for server in (one, two, whole):
            self._delete_server(server)
        self.period()
        self.assertEqual((6, 0, 0), self.vgpus())
        self.assertFound()
        self.assertNotIn("ERROR [nova_gpu", self.log())


class EnabledTest(alone.Alone, divided.DividedServersTestBase):
    """By [gpu]virtual_functions, at start"""

    MACHINE = "amd-intel"
    CARDS = ("0000:43:00.0", "0000:c3:00.0")

    def prepare(self, host: hosts.Host) -> None:
        for card in self.CARDS:
            for name, text in {"totalvfs": 7, "numvfs": 0, "drivers_autoprobe": 1}.items():
                (host.path(card) / f"sriov_{name}").write_text(f"{text}\n")
            host.bind(card, "i915")
        self.kernel_of_functions = self.useFixture(sriov_kernel.SriovKernel(host))

    def test_once_and_never_of_a_card_that_an_instance_has(self) -> None:
        first, second = self.CARDS
        self.flags(virtual_functions=[f"{second}=2"], group="gpu")
        self.start_host()
        self.assertEqual([f"{second} 2"], self.kernel_of_functions.done)
        part = self.boot(self.flavor(**FLAVOR))
        self.assertEqual(slots(second, 1), self.recorded(part))
        self.hosts["host1"].bind(first, "vfio-pci")
        self.period()
        whole = self.boot(self.flavor(gpus="= 1", gpu_arch="xe-hpg"))
        self.assertEqual([first], self.recorded(whole))
        self.flags(virtual_functions=["8086:56c0=2"], group="gpu")
        self.restart_host("host1")
        self.assertEqual([f"{second} 2"], self.kernel_of_functions.done)
        self._delete_server(whole)
        self.restart_host("host1")
        self.assertEqual([f"{second} 2", f"{first} 2"], self.kernel_of_functions.done)
        self.leaves = {"reserved": "the group of whole cards has none any more"}


class RefusalsTest(alone.Alone, PlainServersTestBase):
    def test_functions_that_the_host_takes(self) -> None:
        """A card with one is not offered; whoever has one of another that is taken fails in
        words."""
        server = self.boot(self.flavor(**FLAVOR))
        self._stop_server(server)
        host = self.hosts["host1"]
        host.bind(FIRST.replace(".0", ".1"), "i915")
        said = self.refused({"os-start": None}, server)
        self.assertIn("is bound to i915, a driver of the host; write 0 to", said[0])
        host.bind(FIRST.replace(".0", ".1"), None)
        self._start_server(server)
        self.assertVGPUs(server, slots(FIRST, 1))

    def test_not_offered(self) -> None:
        self.hosts["host1"].bind(FIRST.replace(".0", ".2"), "i915")
        self.restart_host("host1")
        self.period()
        self.assertEqual((3, 0, 0), self.vgpus())
        self.assertIn(
            f"its virtual function {FIRST.replace('.0', '.2')} is bound to i915", self.log()
        )

    def test_by_option(self) -> None:
        self.leaves = {"reserved": "what was offered before is given to nobody any more"}
        self.flags(vgpu_types=["nvidia-*"], group="gpu")
        self.restart_host("host1")
        self.period()
        self.assertIn("it has 3 SR-IOV virtual functions", self.log())
