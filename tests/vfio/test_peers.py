# SPDX-License-Identifier: Apache-2.0
"""What the driver in a guest finds in the configuration space of two cards that reach each other.

QEMU puts it there for displays of NVIDIA's alone, which the VM's cards are to it.
"""

from __future__ import annotations

import re
from typing import Any

from lab.vm import cards
from tests.cloud.base import IMAGE
from tests.vfio import base

_PRODUCT = ("10de:1091", "038000")
# What the host shows instead, a Tesla P100, and the first device on its own root: one of Ice Lake,
# of which Linux knows that it passes on what cards send each other
_ON_HOST = "15f8"
_PASSING = {"device": "0x09a2"}
# Where the specification of 2017 has the capability, and what it is: vendor-specific, the last one,
# of 8 bytes, with a signature. Then the number of the clique, in bits 3 to 6.
_PLACE, _LENGTH = 200, 8
_CAPABILITY = bytes([9, 0, 8]) + b"P2P"
# Before the guest's own program. The kernel knows no quotes within quotes.
_PROGRAM = (
    "/bin/busybox mkdir -p /sys; /bin/busybox mount -t sysfs sys /sys; "
    "for each in /sys/bus/pci/devices/*; do "
    f"echo guest: config $each $(/bin/busybox xxd -p -s {_PLACE} -l {_LENGTH} $each/config); done; "
    "/bin/busybox umount /sys; exec /init"
)
_READ = re.compile(r"^guest: config \S+/(\S+) ([0-9a-f]+)\r?$", re.MULTILINE)


class PeersTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.offer, cards.PRODUCT_ID, len(cards.WHOLE))
        self.pretend({"device": f"0x{_ON_HOST}"}, *cards.WHOLE)
        self.pretend(_PASSING, "0000:00:00.0")
        self.addCleanup(self.cloud._delete_everything)
        self.offer(_ON_HOST, len(cards.WHOLE))
        properties = self.cloud.glance.images[IMAGE]["properties"]
        command_line = properties["os_command_line"]
        self.addCleanup(properties.update, os_command_line=command_line)
        properties["os_command_line"] = f'{command_line} rdinit=/bin/busybox -- sh -c "{_PROGRAM}"'

    def test_two_cards_of_one_clique(self) -> None:
        words = {"gpus": "= 2", "gpu_arch": "s== pascal", "gpu:peer_access": "required"}
        server = self.cloud.boot(self.cloud.flavor(**words))
        seen = [address for address, kind in self.seen_in(server).items() if kind == _PRODUCT]
        self.assertEqual(2, len(seen))
        read = self.read(server)
        for card in seen:
            self.assertEqual(_CAPABILITY + bytes([0 << 3, 0]), read[card])
        # QEMU chains the capability to the others, of which a function without it has none there.
        others = [config for address, config in read.items() if address not in seen]
        self.assertFalse([config for config in others if config.startswith(_CAPABILITY)])
        self.assertIn(
            "custom device configuration", self.host.virsh("dominfo", self.cloud.domain(server))
        )

    def read(self, server: dict[str, Any]) -> dict[str, bytes]:
        """The bytes of each function, by its address in the guest"""
        console = self.cloud.console(server)
        return {address: bytes.fromhex(text) for address, text in _READ.findall(console)}
