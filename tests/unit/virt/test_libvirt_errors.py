# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from typing import ClassVar

import libvirt
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt import libvirt_errors
from tests.fixtures import cards

FIRST = dataclasses.replace(cards.card("0000:01:00.0"), companions=cards.addresses("0000:01:00.1"))
SECOND = cards.card("0000:02:00.0")
CARDS = (FIRST, SECOND)
MDEV, VF = Slot.parse("0000:3b:00.0/nvidia-63/0"), Slot.parse("0000:3b:00.5/vf/0")

# What was seen (libvirt 9.0, QEMU 7.2), or stands in their sources; the card it is about; the
# reason.
SAID = (
    (
        "Requested operation is not valid: PCI device 0000:02:00.0 is in use by driver QEMU, "
        "domain instance-00000007",
        SECOND,
        "another domain has it",
    ),
    ("Requested operation is not valid: PCI device 0000:01:00.0 is in use", FIRST, "another"),
    (
        "internal error: qemu unexpectedly closed the monitor: 2026-11-20T10:11:12.000000Z "
        "qemu-system-x86_64: -device vfio-pci,host=0000:01:00.0,id=hostdev0,bus=pci.1: vfio "
        "0000:01:00.0: group 13 is not viable\nPlease ensure all devices within the iommu_group "
        "are bound to their vfio bus driver.",
        FIRST,
        "other devices of its IOMMU group 13",
    ),
    (
        "Requested operation is not valid: Unmanaged PCI device 0000:01:00.1 must be manually "
        "detached from the host",
        FIRST,
        "a driver of the host",
    ),
    (
        "unsupported configuration: host doesn't support passthrough of host PCI devices",
        FIRST,
        "IOMMU is off",
    ),
    ("vfio 0000:02:00.0: no iommu_group found: No such file or directory", SECOND, "IOMMU is off"),
    (
        "vfio 0000:02:00.0: failed to open /dev/vfio/14: Device or resource busy",
        SECOND,
        "another process",
    ),
    (
        "vfio 0000:02:00.0: error getting device from group 14: Device or resource busy\nVerify "
        "all devices in group 14 are bound to vfio-<bus> or pci-stub and not already in use",
        SECOND,
        "another process",
    ),
    (
        "vfio 0000:02:00.0: error getting device from group 14: No such device\nVerify all devices "
        "in group 14 are bound to vfio-<bus> or pci-stub and not already in use",
        SECOND,
        "vfio does not give it",
    ),
    (
        "vfio 0000:01:00.0: failed to setup container for group 13: Failed to set iommu for "
        "container: Operation not permitted",
        FIRST,
        "vfio does not give it",
    ),
    (
        "vfio 0000:01:00.0: failed to setup container for group 13: memory listener initialization "
        "failed: Region pc.ram: vfio_dma_map(0x5610, 0x0, 0xa0000, 0x7f80) = -12 (Cannot allocate "
        "memory)",
        FIRST,
        "memory cannot be locked",
    ),
    (
        "vfio 0000:02:00.0: vfio_container_dma_map(0x55d0, 0x0, 0xa0000, 0x7f) = -12 (Cannot "
        "allocate memory)",
        SECOND,
        "memory cannot be locked",
    ),
    (
        "cannot limit locked memory of process 4711 to 9663676416: Operation not permitted",
        FIRST,
        "memory cannot be locked",
    ),
    (
        "internal error: Failed to bind PCI device '0000:01:00.0' to vfio-pci: No such device",
        FIRST,
        "take it from the host's driver",
    ),
    (
        "vfio 0000:02:00.0: failed to setup container for group 14: no available container",
        SECOND,
        "vfio does not give it",
    ),
    (
        "vfio 0000:02:00.0: error bind device fd=24 to iommufd=23: Operation not permitted",
        SECOND,
        "vfio does not give it",
    ),
    ("failed to add group 14 to KVM VFIO device: Permission denied", FIRST, "vfio does not give"),
    ("vfio 0000:02:00.0: something that no release said yet", SECOND, "vfio does not give it"),
    (
        "Device 0000:01:00.1 not found: could not access /sys/bus/pci/devices/0000:01:00.1/config: "
        "No such file or directory",
        FIRST,
        "no longer on the PCI bus",
    ),
    (
        "internal error: Unknown PCI header type '127' for device '0000:02:00.0'",
        SECOND,
        "no longer answers",
    ),
    (
        "internal error: Unable to reset PCI device 0000:02:00.0: no FLR, PM reset or bus reset "
        "available",
        SECOND,
        "could not be reset",
    ),
)

# About no card, or none of ours.
OTHER = (
    "Cannot access storage file '/var/lib/nova/disk': No such file or directory",
    "Requested operation is not valid: PCI device 0000:3b:00.0 is in use by driver QEMU, domain x",
    "vfio 0000:3b:00.0: group 40 is not viable",
    "internal error: process exited while connecting to monitor",
)


class TranslateTest(unittest.TestCase):
    def test_said_of_a_card(self) -> None:
        for message, card, reason in SAID:
            with self.subTest(message=message):
                found = libvirt_errors.translate(message, CARDS)
                assert found is not None
                self.assertEqual(str(card.address), found.address)
                self.assertIn(reason, found.reason)
                self.assertTrue(found.remedy)

    def test_said_of_anything_else(self) -> None:
        for message in OTHER:
            with self.subTest(message=message):
                self.assertIsNone(libvirt_errors.translate(message, CARDS))

    def test_without_cards(self) -> None:
        for message, _, _ in SAID:
            self.assertIsNone(libvirt_errors.translate(message, ()))


class TranslatedTest(unittest.TestCase):
    def test_libvirts_own_is_kept_as_the_cause(self) -> None:
        said = libvirt.libvirtError(SAID[0][0])
        with (
            self.assertRaises(exception.DeviceUnavailable) as caught,
            libvirt_errors.translated(CARDS),
        ):
            raise said
        self.assertIs(said, caught.exception.__cause__)

    def test_what_is_not_translated_passes(self) -> None:
        for error in (libvirt.libvirtError(OTHER[0]), ValueError(SAID[0][0])):
            with self.assertRaises(type(error)) as caught, libvirt_errors.translated(CARDS):
                raise error
            self.assertIs(error, caught.exception)


# Of QEMU 8.2 and libvirt 10.0, by their sources
IMMOVABLE = (
    (
        "internal error: unable to execute QEMU command 'migrate': 0000:3b:00.5: VFIO migration is "
        "not supported in kernel",
        VF,
        "its driver on the host cannot save its state",
    ),
    (
        f"Operation not supported: cannot migrate domain: {uuids.MDEV}: VFIO migration is not "
        "supported in kernel",
        MDEV,
        "its driver on the host cannot save its state",
    ),
    (
        "Operation not supported: cannot migrate a domain with <hostdev mode='subsystem' "
        "type='mdev'>",
        MDEV,
        "the host's libvirt moves no such device",
    ),
    (
        "cannot migrate domain: Multiple VFIO devices migration is supported only if all of them "
        "support P2P migration",
        MDEV,
        "not of several",
    ),
    (
        "0000:3b:00.5: VFIO device doesn't support device and IOMMU dirty tracking",
        VF,
        "cannot say what it writes",
    ),
    ("0000:3b:00.5: something of VFIO that no release said yet", VF, "vfio does not move it"),
)


class OfMoveTest(unittest.TestCase):
    NAMES: ClassVar[dict[str, Slot]] = {uuids.MDEV: MDEV, "0000:3b:00.5": VF}

    def test_said_of_a_vgpu(self) -> None:
        for message, slot, reason in IMMOVABLE:
            with self.subTest(message=message):
                said = libvirt_errors.of_move(libvirt.libvirtError(message), self.NAMES)
                assert said is not None
                self.assertIn(f"vGPU {slot} cannot be moved: ", said)
                self.assertIn(reason, said)

    def test_said_of_anything_else(self) -> None:
        for message in ("Unable to connect to server at 'host2:49152'", OTHER[0]):
            error = libvirt.libvirtError(message)
            self.assertIsNone(libvirt_errors.of_move(error, self.NAMES))
        self.assertIsNone(libvirt_errors.of_move(ValueError(IMMOVABLE[0][0]), self.NAMES))

    def test_without_vgpus(self) -> None:
        error = libvirt.libvirtError(IMMOVABLE[0][0])
        self.assertIsNone(libvirt_errors.of_move(error, {}))
