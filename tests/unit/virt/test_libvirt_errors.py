# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import tempfile
import unittest
from typing import ClassVar
from unittest import mock

import libvirt
import yaml
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

TEXTS = yaml.safe_load((pathlib.Path(__file__).parent / "libvirt_errors.yaml").read_text())
IN_USE = TEXTS["devices"]["another domain has it"][0]
ENDED = "internal error: process exited while connecting to monitor"
REFUSED = "error getting device from group 5: Input/output error"


def said(*kinds: str) -> list[tuple[str, str]]:
    """Return each text of these kinds with what is to be said of it."""
    return [
        (text, reason) for kind in kinds for reason in TEXTS[kind] for text in TEXTS[kind][reason]
    ]


class TranslateTest(unittest.TestCase):
    def test_said_of_a_card(self) -> None:
        """A text that names no card is about none, even if the guest has no other one."""
        for message, reason in said("devices"):
            with self.subTest(message=message):
                self.assertIsNone(libvirt_errors.translate(message, {}))
                error = libvirt_errors.translate(message, NAMES)
                assert isinstance(error, exception.DeviceUnavailable)
                card = re.search("0000:0[12]:00", message)
                named = f"{card.group()}.0" if card else None
                self.assertEqual(named, error.address)
                self.assertIn(f"GPU {named} cannot" if named else "a GPU cannot", str(error))
                self.assertIn(reason, error.reason)
                self.assertIn(error.remedy, str(error))
                self.assertNotIn(error.remedy, error.user_text)
                self.assertIn("ask the operator", error.user_text)
                is_known = "the host's vfio refuses it" not in reason
                self.assertIsNot(is_known, isinstance(error, exception.UnknownFailure))

    def test_said_by_nvidias_manager(self) -> None:
        names = libvirt_errors.names(uuids.instance, (MDEV, VF))
        uuid = device_uuid(uuids.instance, MDEV)
        for failure in (
            REFUSED,
            "error getting device from group 5: Connection timed out",
            "failed to read device config space: Bad address",
        ):
            error = libvirt_errors.translate(f"vfio {uuid}: {failure}", names)
            assert error is not None
            self.assertIn("NVIDIA's vGPU manager refuses it", error.reason)
            self.assertIn("NVIDIA's vGPU manager", error.user_text)
            error = libvirt_errors.translate(f"vfio 0000:01:00.0: {failure}", NAMES)
            assert error is not None
            self.assertIn("the host's vfio refuses it", error.reason, "a whole card")
            self.assertIn(failure, str(error))
            self.assertNotIn(failure, error.user_text)

    def test_said_of_parts(self) -> None:
        names = libvirt_errors.names(uuids.instance, (MDEV, VF))
        uuid = device_uuid(uuids.instance, MDEV)
        for message, slot in (
            (f"vfio {uuid}: {REFUSED}", MDEV),
            (f"mediated device {uuid} is in use by driver QEMU, domain other", MDEV),
            (f"vfio 0000:3b:00.5: {REFUSED}", VF),
        ):
            with self.subTest(message=message):
                error = libvirt_errors.translate(message, names)
                assert error is not None
                self.assertEqual(str(slot), error.address)
        others = f"vfio {uuids.mdev}: {REFUSED}"
        self.assertIsNone(libvirt_errors.translate(others, names))

    def test_said_of_host_and_request(self) -> None:
        warned = "qemu: warning: vfio 0000:01:00.0: Could not enable error recovery for the device"
        for message, reason in said("host", "image"):
            with self.subTest(message=message):
                translated_error = libvirt_errors.translate(f"{warned}\n{message}", NAMES)
                is_image = reason in TEXTS["image"]
                error = exception.GuestUnfit if is_image else exception.BetterElsewhere
                self.assertIsInstance(translated_error, error)
                assert translated_error is not None
                self.assertIn(reason, translated_error.reason)
                self.assertNotIn("0000:", translated_error.user_text)
        for message in (warned, *TEXTS["others"]):
            self.assertIsNone(libvirt_errors.translate(message, NAMES), message)

    def test_what_it_quotes_is_printed(self) -> None:
        message = IN_USE.replace("instance-", "in\x1b[2Jstance-")
        error = libvirt_errors.translate(message, NAMES)
        assert error is not None
        self.assertTrue(str(error).isprintable())


class TranslatedTest(unittest.TestCase):
    def test_libvirts_own_is_kept_as_the_cause(self) -> None:
        error = libvirt.libvirtError(IN_USE)
        with (
            self.assertRaises(exception.DeviceUnavailable) as caught,
            libvirt_errors.translated(uuids.instance, CARDS),
        ):
            raise error
        self.assertIs(error, caught.exception.__cause__)

    def test_what_is_not_known_is_counted_and_logged(self) -> None:
        """So that it can be added."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with (
            mock.patch.object(counters, "_folder", folder),
            self.assertLogs("nova_gpu") as log,
            self.assertRaises(libvirt.libvirtError),
            libvirt_errors.translated(uuids.instance, CARDS),
        ):
            raise libvirt.libvirtError(f"{ENDED}: a text\x1b[2J of no release")
        self.assertEqual({"UnknownFailure": 1}, counters.read(folder).failures)
        self.assertIn("does not know: internal error: process exited", log.output[0])
        self.assertIn("a text\ufffd[2J of no release. If", log.output[0])

    def test_the_journal_of_nvidias_manager(self) -> None:
        """It is quoted for the administrator, and not for the tenant."""
        text = f"vfio {device_uuid(uuids.instance, MDEV)}: {REFUSED}"
        for answer, quoted in (
            (["error: no framebuffer"], "error: no framebuffer"),
            ([], "its journal has nothing since the start began"),
            (OSError("no journalctl"), "its journal cannot be read from here: no journalctl"),
        ):
            with (
                mock.patch("nova_gpu.privsep.vgpu.manager_errors", side_effect=[answer]),
                self.assertRaises(exception.DeviceUnavailable) as caught,
                libvirt_errors.translated(uuids.instance, [MDEV]),
            ):
                raise libvirt.libvirtError(text)
            self.assertIn(quoted, str(caught.exception))
            self.assertNotIn(quoted, caught.exception.user_text)

    def test_what_is_not_translated_passes(self) -> None:
        for error in (libvirt.libvirtError(ENDED), ValueError(IN_USE)):
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
        error, done = libvirt.libvirtError(text), []
        error.err = (code,)
        with (
            self.assertRaises(Exception) as caught,
            libvirt_errors.translated(uuids.instance, CARDS),
            libvirt_errors.defining(lambda: done.append(1)) as defined,
        ):
            if is_defined:
                defined()
            raise error
        self.assertEqual([1] if is_defined else [], done)
        return caught.exception

    def test_what_no_host_starts(self) -> None:
        error = self.define(self.TEXT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED)
        assert isinstance(error, exception.GuestUnfit)
        text = error.user_text
        self.assertIn("controllers of a device in a file; change that in its image", text)
        self.assertTrue(text.isprintable())

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

    def test_names_the_function_none_or_another(self) -> None:
        self.assertEqual(self.OWN, self.blame(self.TEXT))
        cause = self.blame("failed to open /dev/vfio/60: Input/output error")
        self.assertEqual(dataclasses.replace(self.OWN, name=None, is_its_own=False), cause)
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
        for message, reason in said("devices"):
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
        for message, _ in said("host", "image"):
            self.assertIsNone(self.blame(f"vfio 0000:3b:00.4: {message}"), message)
        self.assertIsNone(libvirt_errors.blame(ValueError(self.TEXT), self.NAMES))


class OfMoveTest(unittest.TestCase):
    NAMES: ClassVar[dict[str, Slot]] = {uuids.MDEV: MDEV, "0000:3b:00.5": VF}

    def test_said_of_a_vgpu(self) -> None:
        for message, reason in said("moves"):
            with self.subTest(message=message):
                error = libvirt.libvirtError(message.replace("MDEV", uuids.MDEV))
                slot = VF if "0000:3b:00.5" in message else MDEV
                text = str(libvirt_errors.of_move(error, self.NAMES))
                self.assertIn(f"vGPU {slot} cannot be moved: ", text)
                self.assertIn(reason, text)
                self.assertIsNone(libvirt_errors.of_move(error, {}))

    def test_said_of_anything_else(self) -> None:
        for message in ("Unable to connect to server at 'host2:49152'", TEXTS["others"][0]):
            error = libvirt.libvirtError(message)
            self.assertIsNone(libvirt_errors.of_move(error, self.NAMES))
        self.assertIsNone(libvirt_errors.of_move(ValueError(said("moves")[0][0]), self.NAMES))
