# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.exception import GuestError

CARD = "0000:88:00.0"
OTHERS = "instance 9a3b8c5e"
EACH = (
    exception.RequestMismatch("it has 1 GPU instead of 2", "is GPUFilter enabled?"),
    exception.GuestUnfit("it has no PCI Express", "set hw_machine_type=q35"),
    exception.DeviceUnavailable(CARD, "another guest has it", "remove its domain", OTHERS),
    exception.DeviceUnavailable(CARD, "it is gone", "replace it"),
    exception.DomainsUnreadable(OTHERS),
    exception.ProvidersUnknown(OTHERS),
    exception.BindingFailed(CARD, "it hangs", "reboot the host"),
    exception.CardInUse(CARD, "it is in use", "end that first", OTHERS),
    exception.BetterElsewhere(None, "they are on two NUMA nodes", "another host may do"),
    exception.DeviceNodeMissing(CARD, "/dev/nvidia0", "make it"),
    exception.GuestFilesUnavailable("/var/lib/nova/gpu-libraries", "No space left on device"),
)


def kinds(of: type[GuestError] = GuestError) -> Iterator[type[GuestError]]:
    for each in of.__subclasses__():
        yield each
        yield from kinds(each)


class TestGuestError(base.BaseTestCase):
    def test_each_kind_is_here(self) -> None:
        bases = {exception.GuestCannotStart}
        self.assertEqual(set(kinds()) - bases, {type(each) for each in EACH})

    def test_made_anew_of_its_arguments(self) -> None:
        """The way oslo.privsep brings an error from its daemon."""
        for error in EACH:
            again = type(error)(*error.args)
            self.assertEqual((str(error), error.told), (str(again), again.told))

    def test_device_fact_and_remedy(self) -> None:
        for error in EACH:
            self.assertIn(error.reason, error.told)
            self.assertTrue(error.remedy and error.told.endswith(f"; {error.remedy}"), error.told)
            if error.address:
                self.assertIn(CARD, error.told)

    def test_what_concerns_others_is_for_the_log_alone(self) -> None:
        for error in EACH:
            self.assertNotIn(OTHERS, error.told)
            self.assertEqual(error.others is not None, OTHERS in str(error))

    def test_the_host(self) -> None:
        for error in EACH:
            again = type(error)(*error.args)
            again.host = "gpu1"
            self.assertTrue(again.told.startswith("on gpu1: "), again.told)
            self.assertTrue(str(again).startswith("on gpu1: "))
