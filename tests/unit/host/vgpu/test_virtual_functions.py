# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.vgpu import gim, virtual_functions
from tests.fixtures import cards, pci, sriov_kernel
from tests.fixtures.bases.host import HostTestCase

CARD, FUNCTION, AMDS = "0000:3b:00.0", "0000:3b:00.1", "0000:af:00.0"


class TestParse(base.BaseTestCase):
    def test_what_cannot_be_used(self) -> None:
        for entry, message in (
            ("8086:56c0", "it has no ="),
            ("8086:56c0=0", "is not a number of functions"),
            ("8086:56c0=-1", "is not a number of functions"),
            ("flex=4", "'flex' is neither an address nor a product"),
        ):
            error = self.assertRaises(
                exception.InvalidOption, virtual_functions.parse, ["1002:74a1=8", entry]
            )
            self.assertIn(message, str(error))
            self.assertIn(f"[gpu]virtual_functions = '{entry}'", str(error))


class EnableTestCase(HostTestCase):
    def enable(self, number: int, card: str = CARD, timeout_s: float = 30) -> None:
        virtual_functions.enable(PciAddress.parse(card), number, self.host.roots, timeout_s)

    def refused(self, *arguments: object, **more: object) -> str:
        error = self.assertRaises(exception.DeviceUnavailable, self.enable, *arguments, **more)
        return f"{error}"


class TestEnable(EnableTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=3, driver="i915")
        self.kernel = self.useFixture(sriov_kernel.SriovKernel(self.host))

    def test_once(self) -> None:
        for _ in range(2):
            self.enable(2)
        self.assertEqual([f"{CARD} 2"], self.kernel.done)
        for function in (FUNCTION, FUNCTION.replace(".1", ".2")):
            card = PciAddress.parse(function)
            self.assertIsNone(virtual_functions.obstacle(card, self.host.roots))

    def test_limits_of_intels_functions(self) -> None:
        """Of xe's, and of i915's with two tiles: where there is none"""
        for folder in ("sriov_admin/vf1/profile", "drm/card0/iov/vf1/gt0", "drm/card0/iov/vf2/gt1"):
            for name, value in (("exec_quantum_ms", 0), ("preempt_timeout_us", 0)):
                pci.write(self.host.path(CARD) / folder / name, f"{value}\n")
        pci.write(self.host.path(CARD) / "drm/card0/iov/vf2/gt1/exec_quantum_ms", "20\n")
        text = virtual_functions.unlimited(PciAddress.parse(CARD), 2, self.host.roots) or ""
        self.assertIn("sriov_admin/vf1/profile/exec_quantum_ms is 0: a guest can keep", text)
        self.enable(2)
        self.assertIsNone(virtual_functions.unlimited(PciAddress.parse(CARD), 2, self.host.roots))
        for path, limit in (
            ("sriov_admin/vf1/profile/exec_quantum_ms", "16"),
            ("drm/card0/iov/vf1/gt0/preempt_timeout_us", "32000"),
            ("drm/card0/iov/vf2/gt1/exec_quantum_ms", "20\n"),
        ):
            self.assertEqual(limit, (self.host.path(CARD) / path).read_text())

    def test_refused(self) -> None:
        self.kernel.refused.add(CARD)
        self.assertIn("Device or resource busy", self.refused(1))
        self.assertIn("it can have 3", self.refused(4))
        self.host.add_vf(CARD, FUNCTION)
        self.assertIn(
            "wants 3 virtual functions of it: it has 1 already; write 0 to", self.refused(3)
        )
        self.host.remove_vfs(CARD)
        pci.write(self.host.path(CARD) / "sriov_totalvfs", "0\n")
        self.host.add_gpu(AMDS, "1002", "74a1")
        for card, intels in ((CARD, True), (AMDS, False)):
            refused = self.refused(1, card)
            self.assertIn("its driver allows none; turn SR-IOV on", refused)
            self.assertNotIn("set the option to 0", refused, "0 is no value of the option")
            self.assertEqual(intels, "xe.max_vfs" in refused)

    def test_amds_are_made_by_gim_alone(self) -> None:
        """A write to sriov_numvfs is ENOENT always: neither amdgpu nor gim has a sriov_configure
        (amd/MxGPU-Virtualization, gim_shim/gim_drv.c), and the kernel's sriov_numvfs_store asks for
        that."""
        self.host.add_gpu(AMDS, "1002", "74a1", totalvfs=8)
        message = self.refused(8, AMDS)
        self.assertIn("only AMD's module gim creates them", message)
        self.assertIn("modprobe gim vf_num=8", message)
        self.assertEqual([], self.kernel.done)

    def test_amds_that_gim_has_made(self) -> None:
        self.host.add_gpu(AMDS, "1002", "74a1", totalvfs=8)
        self.host.set_autoprobe(AMDS, enabled=False)
        self.host.add_vf(AMDS, "0000:af:02.0")
        function = PciAddress.parse("0000:af:02.0")
        self.enable(1, AMDS)
        self.assertIsNone(virtual_functions.obstacle(function, self.host.roots))
        self.assertIn("it has 1 already; unload the module gim", self.refused(2, AMDS))
        self.host.set_autoprobe(AMDS, enabled=True)
        reason = virtual_functions.obstacle(function, self.host.roots)
        self.assertIn("sriov_drivers_autoprobe before gim is loaded", str(reason))

    def test_which_cards_gim_lets_share_memory(self) -> None:
        """By its parameter, an array, and the functions of each of its cards"""
        addresses = [f"0000:{bus}3:00.0" for bus in "0123"]
        for card in addresses:
            self.host.add_gpu(card, "1002", "74a1", class_code=0x120000, driver="gim", totalvfs=8)
        gpus = [cards.card(address, "amdgpu") for address in addresses]
        path = self.host.roots.sysfs / "module/gim/parameters/fb_sharing_mode"
        for number, card in enumerate(addresses[:3]):  # the fourth has none
            self.host.add_vf(card, f"0000:{number}3:02.0")
        for text, size in (
            *((None, 8), ("", 8), ("0", 8), ("1", 1), ("2", 2), ("4", 4), ("5", 8), ("2,1", 8)),
        ):
            if text is not None:
                pci.write(path, f"{text}\n")
            reason = gim.undeclared(gpus[0], 1, gpus * 2, self.host.roots)
            self.assertEqual(
                size > 1, f"up to {size} cards share" in (reason or ""), (text, reason)
            )
            self.assertEqual(size == 1, gim.is_alone(gpus[0], 1, self.host.roots), text)
        pci.write(path, "2\n")
        self.host.add_vf(addresses[0], "0000:03:02.1")
        self.assertIn("up to 8 cards", gim.undeclared(gpus[0], 2, gpus * 2, self.host.roots) or "")
        for card in addresses[1:3]:
            self.host.add_vf(card, card.replace("00.0", "02.1"))
        self.assertTrue(gim.is_alone(gpus[0], 2, self.host.roots))


class TestEnableNvidias(EnableTestCase):
    """By a stand-in for NVIDIA's program, which is a program too."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "26b9", totalvfs=2, driver="nvidia")
        device = self.host.path(CARD)
        self.links = [
            f"ln -s ../{CARD[:-1]}{number + 4} {device}/virtfn{number}" for number in (0, 1)
        ]
        self.program = self.root / "sriov-manage"
        self.log = self.root / "runs"
        for name, value in (("_TRY_AGAIN_S", 0.01), ("SRIOV_MANAGE", self.program)):
            self.useFixture(fixtures.MockPatchObject(virtual_functions, name, value))

    def write(self, *lines: str) -> None:
        self.program.write_text("\n".join(["#!/bin/sh", f"echo >> {self.log}", *lines]) + "\n")
        self.program.chmod(0o755)

    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def test_once(self) -> None:
        self.write(f'[ "$*" = "-e {CARD}" ] || exit 1', *self.links)
        for _ in range(2):
            self.enable(2)

    def test_refused(self) -> None:
        self.assertIn(f"there is no {self.program}; install NVIDIA's", self.refused(2))
        self.write("exit 0")
        self.assertIn("reported success and enabled 0", self.refused(2))
        self.write("echo 'vgpu is busy' >&2; exit 3")
        self.assertIn("ended with 3: vgpu is busy", self.refused(2))
        self.assertIn(
            "sriov-manage enables all 2 that it can have; set the option to 2", self.refused(1)
        )
        self.assertEqual(2, self.runs())

    def write_locked(self, times: int) -> None:
        """What the script says while a process has the card open (get_unbind_lock in it)"""
        locked = f"echo 'Cannot obtain unbindLock for {CARD}' >&2; exit 1"
        self.write(f"[ $(wc -l < {self.log}) -gt {times} ] || {{ {locked}; }}", *self.links)

    def test_again_while_somebody_asks_nvml(self) -> None:
        self.write_locked(times=2)
        self.enable(2)
        self.assertEqual(3, self.runs())

    def test_again_but_not_for_ever(self) -> None:
        self.write_locked(times=99)
        message = self.refused(2)
        self.assertEqual(15, self.runs())
        self.assertIn("Cannot obtain unbindLock", message)
        self.assertIn("end what uses the card", message)

    def test_not_where_gpu_instances_would_be_lost(self) -> None:
        """It binds the driver anew, after which there are none (bigstack-oss/cubecos#905)."""
        self.write("exit 0")
        self.host.set_mig(CARD, [(1, 0)])
        self.assertIn("sriov-manage would remove its GPU instances", self.refused(2))
        self.assertEqual(0, self.runs())


class TestObstacle(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=31, driver="i915")
        self.host.set_autoprobe(CARD, enabled=False)

    def obstacle(self) -> str:
        reason = virtual_functions.obstacle(PciAddress.parse(FUNCTION), self.host.roots)
        return reason or ""

    def test_who_drives_it(self) -> None:
        self.host.add_vf(CARD, FUNCTION)
        self.assertEqual("", self.obstacle())
        self.host.bind(FUNCTION, "i915")
        self.assertIn(
            f"{FUNCTION} is bound to i915, a driver of the host; write 0 to", self.obstacle()
        )
        self.host.set_autoprobe(CARD, enabled=True)
        for driver in ("vfio-pci", "xe_vfio_pci"):
            self.host.bind(FUNCTION, driver)
            self.assertEqual("", self.obstacle())
        self.host.bind(FUNCTION, None)
        reason = f"{CARD}/sriov_drivers_autoprobe before sriov_numvfs"
        self.assertIn(reason, self.obstacle())
        (self.host.path(CARD) / "sriov_drivers_autoprobe").unlink()
        self.assertIn(reason, self.obstacle())

    def test_beside_a_neighbour(self) -> None:
        self.host.add_vf(CARD, FUNCTION, iommu_group=77)
        self.host.add_vf(CARD, "0000:3b:00.2", iommu_group=77)
        self.assertIn(f"the IOMMU group of its virtual function {FUNCTION} has", self.obstacle())
        self.assertIn("0000:3b:00.2 (no driver)", self.obstacle())

    def test_without_iommu(self) -> None:
        self.host.iommu = False
        self.assertRaises(OSError, self.obstacle)  # it is gone
        self.host.add_vf(CARD, FUNCTION)
        self.assertIn(f"the IOMMU does not cover {FUNCTION}; turn on VT-d", self.obstacle())
