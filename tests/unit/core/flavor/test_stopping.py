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

    def test_whose_word_counts(self) -> None:
        keep, release = OnStop.KEEP, OnStop.RELEASE
        for flavor, image, host, expected in (
            (None, None, keep, keep),
            (None, None, release, release),
            (None, "release", keep, release),
            (None, "keep", release, keep),
            ("keep", "release", release, keep),
            ("release", "keep", keep, release),
            # A mistake gives nothing back, whoever says otherwise.
            ("relaese", "release", release, keep),
            (None, "relaese", release, keep),
        ):
            with self.subTest(flavor=flavor, image=image, host=host):
                self.assertIs(expected, stopping.stated(flavor, image, host))
