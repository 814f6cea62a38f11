# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import tempfile
import unittest
from typing import ClassVar

import libvirt
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt import counters, libvirt_errors
from tests.fixtures import cards

FIRST = dataclasses.replace(cards.card("0000:01:00.0"), companions=cards.addresses("0000:01:00.1"))
SECOND = cards.card("0000:02:00.0")
CARDS = (FIRST, SECOND)
NAMES = libvirt_errors.names(uuids.instance, CARDS)
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
        "vfio 0000:02:00.0: Could not open '/dev/vfio/14': Device or resource busy",
        SECOND,
        "another process",
    ),
    (
        "vfio 0000:02:00.0: error getting device from group 14: No such device\nVerify all devices "
        "in group 14 are bound to vfio-<bus> or pci-stub and not already in use",
        SECOND,
        "the host's vfio refuses it",
    ),
    (
        "vfio 0000:01:00.0: failed to setup container for group 13: Failed to set iommu for "
        "container: Operation not permitted",
        FIRST,
        "firmware keeps memory for it (RMRR), or interrupts are not remapped",
    ),
    (
        "vfio 0000:01:00.0: failed to setup container for group 13: Failed to set group container: "
        "Invalid argument",
        FIRST,
        "firmware keeps memory of its own for it",
    ),
    (
        "vfio-pci 0000:02:00.0: Device is ineligible for IOMMU domain attach due to platform RMRR "
        "requirement.  Contact your platform vendor.",
        SECOND,
        "firmware keeps memory of its own for it",
    ),
    (
        "vfio 0000:01:00.0: [iommufd=23] error attach 0000:01:00.0 (24) to id=2: Invalid argument",
        FIRST,
        "firmware keeps memory of its own for it",
    ),
    (
        "vfio-pci 0000:02:00.0: Firmware has requested this device have a 1:1 IOMMU mapping, "
        "rejecting configuring the device without a 1:1 mapping. Contact your platform vendor.",
        SECOND,
        "firmware keeps memory of its own for it",
    ),
    (
        "vfio_iommu_type1_attach_group: No interrupt remapping support.  Use the module param "
        '"allow_unsafe_interrupts" to enable VFIO IOMMU support on this platform',
        FIRST,
        "does not remap interrupts",
    ),
    (
        "iommufd: MSI interrupts are not secure, they cannot be isolated by the platform. Check "
        "that platform features like interrupt remapping are enabled.",
        FIRST,
        "does not remap interrupts",
    ),
    (
        "vfio 0000:02:00.0: memory listener initialization failed: Region pc.ram: "
        "vfio_container_dma_map(0x5610, 0x8000000000, 0x10000000, 0x7f80) = -22 (Invalid argument)",
        SECOND,
        "whose addresses are wider than its own",
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
    ("IOMMU_IOAS_MAP failed: Cannot allocate memory", FIRST, "memory cannot be locked"),
    ("IOMMU_IOAS_MAP_FILE failed: Bad address", FIRST, "whose addresses are wider than its own"),
    ("VFIO_MAP_DMA failed: Invalid argument", FIRST, "whose addresses are wider than its own"),
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
        "the host's vfio refuses it",
    ),
    (
        "vfio 0000:02:00.0: error bind device fd=24 to iommufd=23: Operation not permitted",
        SECOND,
        "does not remap interrupts",
    ),
    (
        "failed to add group 14 to KVM VFIO device: Permission denied",
        FIRST,
        "the host's vfio refuses it",
    ),
    ("vfio 0000:02:00.0: something that no release said yet", SECOND, "the host's vfio refuses it"),
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

# Public reports of failed starts: the text, the card it is about, the reason.
REPORTED = (
    # kata-containers/kata-containers#11708, mroboff/vm-curator#60
    (
        "vfio 0000:02:00.0: vfio: Unable to power on device, stuck in D3",
        SECOND,
        "power state D3cold",
    ),
    ("vfio: Unable to power on device, stuck in D3", None, "power state D3cold"),
    # kata-containers/kata-containers#11721, NVIDIA/nvtrust#46
    ("VFIO_MAP_DMA failed: No space left on device", None, "more mappings than the host's vfio"),
    (
        "vfio 0000:02:00.0: memory listener initialization failed: Region pc.ram: "
        "vfio_container_dma_map(0x1, 0x0, 0xa0000, 0x2) = -28 (No space left on device)",
        SECOND,
        "more mappings than the host's vfio",
    ),
    ("internal error: No more available PCI slots", None, "more devices than PCIe ports"),
    (
        "vfio 0000:02:00.0: failed to open /dev/vfio/80: Permission denied",
        SECOND,
        "QEMU may not open the host's /dev/vfio",
    ),
    ("Could not open '/dev/vfio/vfio': No such file or directory", None, "no such node in"),
    (
        "vfio 0000:01:00.0: failed to open /dev/vfio/vfio: No such file or directory",
        FIRST,
        "no such node in /dev/vfio",
    ),
    (
        "vfio 0000:02:00.0: Failed to set up TRIGGER eventfd signaling for interrupt INTX-0: "
        "VFIO_DEVICE_SET_IRQS failure: Device or resource busy",
        SECOND,
        "the same interrupt line",
    ),
    (
        "vfio 0000:02:00.0: Failed to setup INTx fd: Device or resource busy",
        SECOND,
        "the same interrupt line",
    ),
    (
        "vfio 0000:02:00.0: error bind device fd=24 to iommufd=23: Device or resource busy",
        SECOND,
        "another process of the host has it open",
    ),
)

# About no card, or none of ours.
OTHER = (
    "Cannot access storage file '/var/lib/nova/disk': No such file or directory",
    "Requested operation is not valid: PCI device 0000:3b:00.0 is in use by driver QEMU, domain x",
    "vfio 0000:3b:00.0: group 40 is not viable",
    "internal error: process exited while connecting to monitor",
)


# Of the host and the request: no device is at fault, whatever else QEMU had to say.
ELSEWHERE = (
    (
        "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory",
        "too little free memory",
    ),
    (
        "-object memory-backend-file,id=ram-node0,mem-path=/dev/hugepages/libvirt/qemu/9-vm01: "
        "unable to map backing store for guest RAM: Cannot allocate memory",
        "too few free huge pages",
    ),
    ("qemu_prealloc_mem: preallocating memory failed: Bad address", "too few free huge pages"),
    (
        "os_mem_prealloc: Insufficient free host memory pages available to allocate guest RAM",
        "too few free huge pages",
    ),
    (
        "internal error: Unable to find any usable hugetlbfs mount for 1048576 KiB",
        "too few free huge pages",
    ),
    (
        "internal error: hugetlbfs filesystem is not mounted or disabled by administrator config",
        "too few free huge pages",
    ),
    ("cannot fork child process: Cannot allocate memory", "too little free memory"),
)
RAMFB = ("unsupported configuration: Only one vgpu device can have 'ramfb' enabled", "boot screen")


class TranslateTest(unittest.TestCase):
    def test_said_of_a_card(self) -> None:
        """A text that names no card is about none, even if the guest has no other one."""
        for message, card, reason in (*SAID, *REPORTED):
            with self.subTest(message=message):
                found = libvirt_errors.translate(message, NAMES)
                assert isinstance(found, exception.DeviceUnavailable)
                named = str(card.address) if card and "0000:" in message else None
                self.assertEqual(named, found.address)
                self.assertIn(f"GPU {named} cannot" if named else "a GPU cannot", str(found))
                self.assertIn(reason, found.reason)
                self.assertIn(found.remedy, str(found))
                self.assertNotIn(found.remedy, found.user_text)
                self.assertIn("ask the operator", found.user_text)
                is_known = "the host's vfio refuses it" not in reason
                self.assertIsNot(is_known, isinstance(found, exception.UnknownFailure))

    def test_said_by_nvidias_manager(self) -> None:
        names = libvirt_errors.names(uuids.instance, (MDEV, VF))
        uuid = device_uuid(uuids.instance, MDEV)
        for failure in (
            "error getting device from group 5: Input/output error",
            "error getting device from group 5: Connection timed out",
            "failed to read device config space: Bad address",
        ):
            found = libvirt_errors.translate(f"vfio {uuid}: {failure}", names)
            assert found is not None
            self.assertIn("NVIDIA's vGPU manager refuses it", found.reason)
            self.assertIn("NVIDIA's vGPU manager", found.user_text)
            found = libvirt_errors.translate(f"vfio 0000:01:00.0: {failure}", NAMES)
            assert found is not None
            self.assertIn("the host's vfio refuses it", found.reason, "a whole card")
            self.assertIn(failure, str(found))
            self.assertNotIn(failure, found.user_text)

    def test_said_of_parts(self) -> None:
        names = libvirt_errors.names(uuids.instance, (MDEV, VF))
        uuid = device_uuid(uuids.instance, MDEV)
        for message, slot in (
            (f"vfio {uuid}: error getting device from group 5: Input/output error", MDEV),
            (f"mediated device {uuid} is in use by driver QEMU, domain other", MDEV),
            ("vfio 0000:3b:00.5: error getting device from group 5: Input/output error", VF),
        ):
            with self.subTest(message=message):
                found = libvirt_errors.translate(message, names)
                assert found is not None
                self.assertEqual(str(slot), found.address)
        others = f"vfio {uuids.mdev}: error getting device from group 5: Input/output error"
        self.assertIsNone(libvirt_errors.translate(others, names))

    def test_said_of_host_and_request(self) -> None:
        warned = "qemu: warning: vfio 0000:01:00.0: Could not enable error recovery for the device"
        for message, reason in (*ELSEWHERE, RAMFB):
            with self.subTest(message=message):
                found = libvirt_errors.translate(f"{warned}\n{message}", NAMES)
                error = exception.BetterElsewhere if reason != RAMFB[1] else exception.GuestUnfit
                self.assertIsInstance(found, error)
                assert found is not None
                self.assertIn(reason, found.reason)
                self.assertNotIn("0000:", found.user_text)
        self.assertIsNone(libvirt_errors.translate(warned, NAMES))

    def test_said_of_anything_else(self) -> None:
        for message in OTHER:
            with self.subTest(message=message):
                self.assertIsNone(libvirt_errors.translate(message, NAMES))

    def test_what_it_quotes_is_printed(self) -> None:
        message = SAID[0][0].replace("instance-", "in\x1b[2Jstance-")
        found = libvirt_errors.translate(message, NAMES)
        assert found is not None
        self.assertTrue(str(found).isprintable())

    def test_without_cards(self) -> None:
        for message, _, _ in SAID:
            self.assertIsNone(libvirt_errors.translate(message, {}))


class TranslatedTest(unittest.TestCase):
    def test_libvirts_own_is_kept_as_the_cause(self) -> None:
        said = libvirt.libvirtError(SAID[0][0])
        with (
            self.assertRaises(exception.DeviceUnavailable) as caught,
            libvirt_errors.translated(uuids.instance, CARDS),
        ):
            raise said
        self.assertIs(said, caught.exception.__cause__)

    def test_what_is_not_known_is_told_apart(self) -> None:
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        counters.begin(folder)
        self.addCleanup(setattr, counters, "_folder", None)
        with (
            self.assertRaises(libvirt.libvirtError),
            self.assertLogs("nova_gpu.virt.libvirt_errors") as logs,
            libvirt_errors.translated(uuids.instance, CARDS),
        ):
            raise libvirt.libvirtError(f"{OTHER[3]}\nand more")
        self.assertIn(f"nova-gpu does not know: {OTHER[3]} and more. If the", logs.output[0])
        self.assertEqual({"UnknownFailure": 1}, counters.read(folder).failures)
        with (
            self.assertRaises(exception.UnknownFailure) as caught,
            libvirt_errors.translated(uuids.instance, CARDS),
        ):
            raise libvirt.libvirtError("vfio 0000:02:00.0: something\nnew")
        self.assertIn("0000:02:00.0: something new", str(caught.exception))

    def test_what_is_not_translated_passes(self) -> None:
        for error in (libvirt.libvirtError(OTHER[0]), ValueError(SAID[0][0])):
            with (
                self.assertRaises(type(error)) as caught,
                libvirt_errors.translated(uuids.instance, CARDS),
            ):
                raise error
            self.assertIs(error, caught.exception)


class DefiningTest(unittest.TestCase):
    TEXT = "unsupported configuration: IDE\x1b controllers of 0000:01:00.0 in /etc/o/t.xml"

    def define(self, text: str, code: int, *, is_defined: bool = False) -> Exception:
        """Return what a start ends with, of which libvirt says *text*."""
        said, done = libvirt.libvirtError(text), []
        said.err = (code,)
        with (
            self.assertRaises(Exception) as caught,
            libvirt_errors.translated(uuids.instance, CARDS),
            libvirt_errors.defining(lambda: done.append(1)) as defined,
        ):
            if is_defined:
                defined()
            raise said
        self.assertEqual([1] if is_defined else [], done)
        return caught.exception

    def test_what_no_host_starts(self) -> None:
        error = self.define(self.TEXT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED)
        assert isinstance(error, exception.GuestUnfit)
        told = error.user_text
        self.assertIn("controllers of a device in a file; change that in its image", told)
        self.assertTrue(told.isprintable())

    def test_what_another_host_may_start(self) -> None:
        for text, code in (
            (self.TEXT, libvirt.VIR_ERR_SYSTEM_ERROR),
            (
                "unsupported configuration: Emulator '/usr/bin/qemu' does not support machine type "
                "'pc-q35-9.2'",
                libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
            ),
        ):
            self.assertIsInstance(self.define(text, code), libvirt.libvirtError)
        error = self.define(self.TEXT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED, is_defined=True)
        self.assertIsInstance(error, libvirt.libvirtError)


class BlameTest(unittest.TestCase):
    NAMES: ClassVar[dict[str, str]] = dict.fromkeys(("0000:3b:00.4", "0000:3b:00.5"), "a function")
    TEXT = "vfio 0000:3b:00.4: error getting device from group 60: Input/output error"
    OWN = libvirt_errors.Blame("the host's vfio refuses it", "0000:3b:00.4", True, is_known=False)

    def blame(self, text: str, *, is_defined: bool = True) -> libvirt_errors.Blame | None:
        error = libvirt.libvirtError(text)
        with contextlib.suppress(libvirt.libvirtError), libvirt_errors.defining(None) as defined:
            if is_defined:
                defined()
            raise error
        return libvirt_errors.blame(error, self.NAMES)

    def test_names_the_function(self) -> None:
        self.assertEqual(self.OWN, self.blame(self.TEXT))

    def test_names_none_or_another(self) -> None:
        found = self.blame("failed to open /dev/vfio/60: Input/output error")
        self.assertEqual(dataclasses.replace(self.OWN, name=None, is_its_own=False), found)
        self.assertIsNone(self.blame(self.TEXT.replace("3b", "3c")))
        self.assertIsNone(self.blame(f"qemu: warning: {self.TEXT}"))
        self.assertIsNone(self.blame("IDE controllers are unsupported"))

    def test_definition_that_quotes_the_request(self) -> None:
        """As a machine type, which an image may call whatever it likes."""
        text = f"unsupported configuration: no machine type '{self.TEXT}'"
        self.assertIsNone(self.blame(text, is_defined=False))

    def test_host_and_request(self) -> None:
        own = ("the host's vfio refuses it", "could not be reset", "power state D3cold")
        of_host = ("QEMU may not", "no such node", "does not remap")
        of_guest = ("memory cannot be", "whose addresses are", "more mappings", "more devices than")
        for message, _, reason in (*SAID, *REPORTED):
            text = re.sub("0000:0[12]:00.[01]", "0000:3b:00.4", message)
            with self.subTest(text):
                blame = self.blame(text)
                if reason.startswith(of_guest):
                    self.assertIsNone(blame)
                    continue
                assert blame is not None
                named = "3b:00.4" in text and not reason.startswith(of_host)
                self.assertEqual("0000:3b:00.4" if named else None, blame.name)
                self.assertIs(reason in own and blame.name is not None, blame.is_its_own)
        for message, _ in (*ELSEWHERE, RAMFB):
            self.assertIsNone(self.blame(f"vfio 0000:3b:00.4: {message}"), message)
        self.assertIsNone(libvirt_errors.blame(ValueError(self.TEXT), self.NAMES))


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
        "the host's libvirt cannot migrate such a device",
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
        "cannot report what it writes",
    ),
    (
        "0000:3b:00.5: something of VFIO that no release said yet",
        VF,
        "the host's vfio cannot migrate it",
    ),
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
