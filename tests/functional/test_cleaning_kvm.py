# SPDX-License-Identifier: Apache-2.0
"""Whole cards are reset when a guest gives them back."""

from __future__ import annotations

import dataclasses

from nova_gpu.core import model
from nova_gpu.host.state import quarantine
from tests.fixtures import nvml as machines
from tests.functional import alone, kvm


class ResetTestBase(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self.resets()  # those of the start, when nothing was known of the cards

    def resets(self, host: str = "host1") -> list[str]:
        """The functions that were reset since it was asked last"""
        files = [path / "reset" for path in self.hosts[host].devices.iterdir()]
        found = sorted(file.parent.name for file in files if file.exists() and file.read_text())
        for file in files:
            if file.exists():
                file.write_text("")
        return found


class KVMTest(alone.Alone, ResetTestBase):
    """Each has two functions, and both are reset."""

    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.assertEqual(["0000:3b:00.0", "0000:3b:00.1"], self.resets())
        self.assertGPUs(self.boot(self.gpu_flavor(4)), kvm.ALL)

    def test_does_not_come_back_from_its_reset(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "the card that does not come back")
        self.period()  # from here on the database counts it
        (self.hosts["host1"].devices / kvm.ALL[0] / "config").write_bytes(b"\xff" * 256)
        self._delete_server(self.server)
        self._wait_for_assert(lambda: self.assertInventory(total=4, reserved=1))
        self.assertIn(f"{kvm.ALL[0]} does not answer after its reset", self.log())
        self.assertGPUs(self.boot(self.gpu_flavor(3)), kvm.ALL[1:])


class MovesTest(ResetTestBase):
    """At the other host somebody has the card of the same address."""

    MINE = ("0000:3b:00.0", "0000:3b:00.1")

    def setUp(self) -> None:
        super().setUp()
        self.start_host("host2")
        self.resets("host2")
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")
        self._resize_server(self.server, self.flavor(gpus="= 1", note="another"))
        self.assertEqual(([], []), (self.resets(), self.resets("host2")))

    def test_confirm(self) -> None:
        self.confirm(self.server, source="host1")
        self.assertEqual((list(self.MINE), []), (self.resets(), self.resets("host2")))
        self.assertGPUs(self.stranger, [self.MINE[0]], "host2")

    def test_revert(self) -> None:
        self._revert_resize(self.server)
        self.assertEqual(
            ([], ["0000:5e:00.0", "0000:5e:00.1"]), (self.resets(), self.resets("host2"))
        )
        self.assertGPUs(self.server, [self.MINE[0]])
        self.assertGPUs(self.stranger, [self.MINE[0]], "host2")


class LateBoundTest(alone.Alone, kvm.KVMServersTestBase):
    """The host's driver gets a clean card back, and no other."""

    CARD = "0000:3b:00.0"

    def setUp(self) -> None:
        super().setUp()
        self.start_host(machine="cpu-only")
        kvm.add_pair(self.hosts["host1"], self.CARD)
        self.kernel("host1", "nouveau", "snd_hda_intel")
        self.period()
        self.config_space = self.hosts["host1"].devices / self.CARD / "config"
        self.answering = self.config_space.read_bytes()

    def test_card_that_is_not_clean_stays_with_vfio(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.config_space.write_bytes(b"\xff" * 256)
        self._delete_server(server)
        self.period()
        self.assertEqual(["vfio-pci"] * 2, self.drivers(self.CARD))
        self.assertInventory(total=1, reserved=1)
        self.config_space.write_bytes(self.answering)
        quarantine.release(self.state() / "gpu-quarantine", model.PciAddress.parse(self.CARD))
        self.period()
        self.assertEqual(["nouveau", "snd_hda_intel"], self.drivers(self.CARD))
        self.assertInventory(total=1, reserved=0)


class LeftMIGTest(alone.Alone, kvm.KVMServersTestBase):
    """An A30 remembers the MIG mode that its guest turned on (NVIDIA/gpu-admin-tools#2)."""

    CARD = "0000:3b:00.0"

    def test_is_seen_before_the_next_guest(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "the card is not as it was")
        self.flags(nvml=True, nvml_timeout=120, group="gpu")
        card = machines.Card(self.CARD, "NVIDIA A30", 7, 24576, "8.0")
        library = self.useFixture(machines.Library(card))
        self.start_host(machine="cpu-only")
        self.hosts["host1"].add_gpu(self.CARD, "10de", "20b7", driver="nvidia", minor=0)
        self.kernel("host1", "nvidia")
        self.period()
        clean, left = self.boot(self.gpu_flavor(1)), dataclasses.replace(card, mig=())
        self._delete_server(clean)
        self.assertInventory(total=1, reserved=0)
        server = self.boot(self.gpu_flavor(1))
        library.say(left)
        self._delete_server(server)
        self.period()
        self.assertInventory(total=1, reserved=1)
        said = "it is in MIG mode after its cleaning; a guest may have left it so"
        self.assertIn(said, self.log())
        self.assertEqual(["nvidia"], self.drivers(self.CARD))
