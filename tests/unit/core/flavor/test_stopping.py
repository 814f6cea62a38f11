# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import stopping
from nova_gpu.core.flavor.stopping import OnStop


class StoppingTest(unittest.TestCase):
    def test_words(self) -> None:
        for text, said in (("keep", OnStop.KEEP), (" Release ", OnStop.RELEASE)):
            self.assertIs(said, stopping.parse(text))
        for text in ("", "true", "releases"):
            with self.assertRaises(exception.InvalidExtraSpec) as caught:
                stopping.parse(text)
            self.assertIn("keep or release", str(caught.exception))
