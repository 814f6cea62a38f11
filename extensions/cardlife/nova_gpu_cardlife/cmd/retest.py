# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu test``: makes a test of a card due."""

from __future__ import annotations

import sys
from typing import Any

from nova_gpu.cmd import this_host
from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu_cardlife import repairs_of_cards, tests_of_cards
from nova_gpu_cardlife.host import records, repair_records


def run(command: Any, _: list[str]) -> int:
    """Run ``nova-gpu test``; return 0, or 1 if cards are not tested or there is no such card."""
    card = PciAddress.parse(command.address)
    if not CONF.gpu.card_test:
        print("nova-gpu: [gpu]card_test is not set, so no GPU is tested.", file=sys.stderr)
        return 1
    if card not in {gpu.address for gpu in this_host.discover().find()}:
        print(f"nova-gpu: this host has no GPU {card} to be tested.", file=sys.stderr)
        return 1
    try:
        if not tests_of_cards.folder().exists():
            print("nova-gpu: nova-compute has not begun to test GPUs; restart it.", file=sys.stderr)
            return 1
        # In this order: while one of the two is there, the card is not offered without a test.
        records.remove(tests_of_cards.folder(), card)
        repair_records.remove(repairs_of_cards.folder(), card)
    except OSError as error:
        print(f"nova-gpu: {card}: {error.strerror}; run this command as root.", file=sys.stderr)
        return 1
    print(f"GPU {card} is tested when no instance has it, and offered if it passes.")
    return 0
