# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from nova_gpu.core import exception


class TestBindingFailed(base.BaseTestCase):
    def test_made_anew_of_its_arguments(self) -> None:
        """The way oslo.privsep brings an error from its daemon."""
        error = exception.BindingFailed("0000:88:00.0", "it hangs", "reboot the host")
        again = type(error)(*error.args)
        self.assertEqual(str(error), str(again))
        self.assertIn("0000:88:00.0", str(again))
        self.assertEqual("reboot the host", again.remedy)
