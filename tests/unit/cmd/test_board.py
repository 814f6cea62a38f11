# SPDX-License-Identifier: Apache-2.0
"""What commands print where nothing is installed that joins cards"""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.cmd import board
from nova_gpu.core.model import PciAddress
from nova_gpu.virt import sets


class NoBoardTest(base.BaseTestCase):
    def test_nothing_is_said(self) -> None:
        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.core.extensions.BOARD_TEXT", "nova_gpu.gone.x")
        )
        text, card = board.text(), PciAddress.parse("0000:3b:00.0")
        self.assertEqual(([], []), text.of_card(sets.NoSets(), card))
        self.assertEqual((None, None), text.facts(sets.NoSets(), card))
        self.assertEqual([], list(text.table(sets.NoSets(), [], {})))
