# SPDX-License-Identifier: Apache-2.0
"""What a host does that has nothing to do around guests, as the commands see it."""

from __future__ import annotations

from oslotest import base

from nova_gpu.virt.delivery.host_hooks import HostHooks
from tests.fixtures import cards

CARD = cards.card("0000:3b:00.0")


class HostHooksTest(base.BaseTestCase):
    def test_every_card_can_be_had(self) -> None:
        hooks = HostHooks()
        hooks.judge(CARD)
        hooks.looked([CARD])
        hooks.cleaned([CARD])
        self.assertEqual({}, hooks.unavailable())
