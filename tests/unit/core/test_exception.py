# SPDX-License-Identifier: Apache-2.0
import unittest
from collections.abc import Iterator

from oslotest import base

from nova_gpu.core import boundary, exception
from nova_gpu.core.exception import GuestError

CARD = "0000:88:00.0"
OTHERS = "instance 9a3b8c5e"
EACH = (
    exception.RequestMismatch("it has 1 GPU instead of 2", "is GPUFilter enabled?"),
    exception.GuestUnfit("it has no PCI Express", "set hw_machine_type=q35"),
    exception.DeviceUnavailable(CARD, "another guest has it", "remove its domain", OTHERS),
    exception.DeviceUnavailable(CARD, "it is gone", "replace it"),
    exception.UnknownFailure(CARD, "QEMU cannot open it", "see its log"),
    exception.NoneFree("all 2 are in use", "start it again when one is free", OTHERS),
    exception.QuotaExceeded("quota of class:PGPU is 1", "stop others", OTHERS),
    exception.OverQuota("quota of class:PGPU is 1", "stop others", OTHERS),
    exception.NotCounted(),
    exception.DomainsUnreadable(OTHERS),
    exception.ProvidersUnknown(OTHERS),
    exception.BindingFailed(CARD, "it hangs", "reboot the host"),
    exception.CardInUse(CARD, "it is in use", "end that first", OTHERS),
    exception.BetterElsewhere(None, "they are on two NUMA nodes", "another host may do"),
    exception.DeviceNodeMissing(CARD, "/dev/nvidia0", "make it"),
    exception.GuestFilesUnavailable("/var/lib/nova/gpu-libraries", "No space left on device"),
)


def kinds(of: type[GuestError] = GuestError) -> Iterator[type[GuestError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


class TestGuestError(base.BaseTestCase):
    def test_each_kind_is_here(self) -> None:
        bases = {exception.GuestCannotStart}
        self.assertEqual(set(kinds()) - bases, {type(error) for error in EACH})

    def test_each(self) -> None:
        """Made anew of its arguments it is the same: oslo.privsep brings it from its daemon so."""
        for error in EACH:
            text, again = str(error), type(error)(*error.args)
            self.assertEqual((text, error.user_text), (str(again), again.user_text))
            self.assertIn(error.reason, text)
            self.assertTrue(error.remedy and text.endswith(f"; {error.remedy}"), text)
            self.assertIn(CARD if error.address else "", text)
            self.assertNotIn(OTHERS, error.user_text)
            self.assertEqual(error.others is not None, OTHERS in text)
            again.host = "gpu1"
            self.assertTrue(str(again).startswith("on gpu1: "))

    def test_places_are_for_the_log_alone(self) -> None:
        for error in (
            *EACH,
            exception.DeviceUnavailable(CARD, f"{CARD}/nvidia-35/0: it is lost", "x"),
        ):
            again = type(error)(*error.args)
            again.host = "gpu1"
            user_text = again.user_text
            with self.subTest(user_text):
                self.assertNotIn("gpu1", user_text)
                self.assertNotIn(CARD, user_text)
                self.assertTrue(user_text.strip())
        slot = exception.DeviceUnavailable(CARD, f"{CARD}/nvidia-35/0: it is lost", "mend it")
        self.assertEqual("a GPU cannot be given: a device: it is lost; mend it", slot.user_text)


class CrossedTest(unittest.TestCase):
    def test_any_exception_is_a_failure_with_its_text(self) -> None:
        for error in (KeyError("generation"), ZeroDivisionError("by a bug"), StopIteration()):
            with (
                self.subTest(repr(error)),
                self.assertRaises(boundary.Failure) as raised,
                boundary.crossed(),
            ):
                raise error
            self.assertIs(error, raised.exception.error)
            self.assertIs(error, raised.exception.__cause__)
            self.assertEqual(str(error), str(raised.exception))

    def test_first_line(self) -> None:
        for error, line in (
            (OSError(" remote error\n[stack]\n"), "remote error"),
            (OSError("\n"), "OSError"),
            (StopIteration(), "StopIteration"),
        ):
            with self.subTest(repr(error)):
                self.assertEqual(line, boundary.Failure(error).first_line)

    def test_what_the_caller_catches_and_what_ends_the_process_pass(self) -> None:
        with self.assertRaises(KeyError), boundary.crossed(ValueError, LookupError):
            raise KeyError("gone")
        with self.assertRaises(SystemExit), boundary.crossed():
            raise SystemExit(1)
