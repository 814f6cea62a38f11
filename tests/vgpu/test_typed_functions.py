# SPDX-License-Identifier: Apache-2.0
"""Virtual functions that are given a vGPU type, with a driver that does as NVIDIA's.

The driver (``lab/vm/fakefunctions.c``) is a real variant of vfio-pci. libvirt 9.0, of Debian 12,
starts no guest with them, that of Debian 13 does. Nova's guests with them are in ``tests/moves``.
"""

from __future__ import annotations

import subprocess
import unittest

from lab.vm import cards
from nova_gpu.cmd import this_host
from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import slots, sriov, virtual_functions
from nova_gpu.virt.delivery import vgpu_deliveries
from nova_gpu.virt.inventory import discovery
from tests.vfio import host

SMALL, LARGE, ALL = (f"nvidia-{number}" for number in (948, 949, 950))
IN_MIG_MODE = "nvidia-474"
# What hangs ends never; what does not may take its time on a busy machine.
_GENEROUS_S = 300
_UUID = "6b7b8f3a-4a9c-5a55-9a0a-0a7c2ad5b0e4"
_DOMAIN = """
<domain type='kvm'>
  <name>typed</name>
  <memory unit='MiB'>64</memory>
  <os><type machine='q35'>hvm</type></os>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0' bus='{0.bus}' slot='{0.slot}' function='{0.function}'/></source>
    </hostdev>
  </devices>
</domain>
"""


class TypedFunctionsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.roots = Roots()
        # Somebody asks NVML about the card when it is to get them.
        host.become_nvidias(cards.DIVIDED, "clients=1")
        self.addCleanup(host.be_own_again, cards.DIVIDED)
        self.card = PciAddress.parse(cards.DIVIDED)
        virtual_functions.enable(self.card, 2, self.roots, _GENEROUS_S)
        self.assertEqual("0", host.parameter("clients"))
        self.functions = tuple(map(PciAddress.parse, host.parts(cards.DIVIDED)))

    def test_a_type_comes_and_goes(self) -> None:
        one, other = self.functions
        slot = Slot(one, LARGE, 0)
        for _ in range(2):  # done already: nothing to do
            slots.make(slot, _UUID, self.roots, _GENEROUS_S)
            self.assertEqual(["949", "0"], host.types(cards.DIVIDED))
        # Beside one there can be others of its size, and the function that has it lists none.
        self.assertEqual([[], [LARGE]], self.listed())
        self.assertRefused(Slot(one, SMALL, 0), f"the function has the type {LARGE}")
        self.assertRefused(Slot(other, ALL, 0), slots.NOT_LISTED)

        with host.device_open(str(one)), self.assertRaises(exception.NotClean) as raised:
            slots.remove(slot, _UUID, self.roots, _GENEROUS_S)
        self.assertIn("Device or resource busy", str(raised.exception))
        for _ in range(2):
            slots.remove(slot, _UUID, self.roots, _GENEROUS_S)
            self.assertEqual(["0", "0"], host.types(cards.DIVIDED))
        self.assertEqual([[SMALL, LARGE, ALL]] * 2, self.listed())

    def test_in_mig_mode(self) -> None:
        """The types are those of the GPU instances that there are."""
        one, other = self.functions
        host.set_parameter("gpu_instances", "0")
        self.assertEqual([[], []], self.listed())
        self.assertRefused(Slot(one, IN_MIG_MODE, 0), slots.NOT_LISTED)
        host.set_parameter("gpu_instances", "1")
        self.assertEqual([[IN_MIG_MODE]] * 2, self.listed())
        slots.make(Slot(one, IN_MIG_MODE, 0), _UUID, self.roots, _GENEROUS_S)
        self.assertRefused(Slot(other, IN_MIG_MODE, 0), slots.NOT_LISTED)
        # NVIDIA's program takes them with the functions, and leaves the mode.
        for verb in ("-d", "-e"):
            host.sriov_manage(verb, cards.DIVIDED)
        self.assertEqual("0", host.parameter("gpu_instances"))

    def test_what_libvirt_makes_of_them(self) -> None:
        """Debian 12's is too old for them: a newer one would do."""
        host_discovery = discovery.Discovery(libvirt_version=this_host.version)
        parts, others = host_discovery.in_parts(host_discovery.find())
        major, minor, micro = vgpu_deliveries.MIN_LIBVIRT
        newer = (major * 1000 + minor) * 1000 + micro
        if this_host.version() < newer:
            self.assertNotIn(self.card, parts)
            self.assertIn("libvirt 9.0.0 starts no guest", str(others[self.card][0]))
            self.assertNotStarted()
            host_discovery = discovery.Discovery(libvirt_version=lambda: newer)
            parts, others = host_discovery.in_parts(host_discovery.find())
        else:
            self.assertStarted()
        self.assertNotIn(self.card, others)
        self.assertEqual([SMALL, LARGE, ALL], sorted(parts[self.card].types))

    def assertNotStarted(self) -> None:
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            host.create(_DOMAIN.format(self.functions[0]))
        message = (
            f"Unmanaged PCI device {self.functions[0]} must be manually detached from the host"
        )
        self.assertIn(message, raised.exception.stderr)

    def assertStarted(self) -> None:
        slot = Slot(self.functions[0], SMALL, 0)
        slots.make(slot, _UUID, self.roots, _GENEROUS_S)
        host.create(_DOMAIN.format(self.functions[0]))
        self.assertEqual("running", host.virsh("domstate", "typed"))
        host.virsh("destroy", "typed")
        slots.remove(slot, _UUID, self.roots, _GENEROUS_S)
        # Else libvirt remembers it as one that others have bound to vfio-pci, and leaves it there
        # when a guest ends that has it as a managed one (virPCIDeviceUnbindFromStub).
        name = str(self.functions[0]).replace(":", "_").replace(".", "_")
        host.virsh("nodedev-reattach", f"pci_{name}")

    def listed(self) -> list[list[str]]:
        """The types that each function lists"""
        profiles = [
            sriov.profiles(sysfs.device(function, self.roots)) for function in self.functions
        ]
        return [sorted(profile.names) if profile else [] for profile in profiles]

    def assertRefused(self, slot: Slot, message: str) -> None:
        with self.assertRaises(exception.DeviceUnavailable) as raised:
            slots.make(slot, _UUID, self.roots, _GENEROUS_S)
        self.assertIn(message, str(raised.exception))
