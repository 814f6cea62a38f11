# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu passport``: shows what is known of a card, and adds notes to it."""

from __future__ import annotations

import sys
from typing import Any

from nova_gpu.cmd.output import Format, print_json
from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu_cardlife import passports
from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.host import passport_files


def run(command: Any, line: list[str]) -> int:
    """Run ``nova-gpu passport``; return 0, or 1 if the card has no passport here."""
    address = str(PciAddress.parse(command.address))
    if not CONF.gpu.passport_folder:
        text = "[gpu]passport_folder is not set, so no GPU has a passport."
        print(f"nova-gpu: {text}", file=sys.stderr)
        return 1
    folder = passports.folder()
    try:
        own, _ = passport_files.read(folder, passport_files.OWN)
        met, _ = passport_files.read(folder, passport_files.MET)
        here = [
            card
            for card in passport.together([*own.values(), *met.values()])
            if any(r.place == address and r.host == CONF.host for r in card.records)
        ]
        if not here:
            print(f"nova-gpu: this host has no passport of a GPU {address}.", file=sys.stderr)
            return 1
        if text := command.note or command.accept:
            kind = passport.NOTE if command.note else passport.ACCEPTED
            passport_files.put_note(folder, PciAddress.parse(address), kind, text)
            print(f"nova-compute adds this to the passport of GPU {address} within a period.")
            return 0
    except OSError as error:
        print(f"nova-gpu: {address}: {error.strerror}; run this command as root.", file=sys.stderr)
        return 1
    if command.format == Format.JSON:
        print_json([passport.dump(record) for card in here for record in card.records])
    else:
        print("\n".join(line for card in here for line in passport.lines(card)))
    return 0
