# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import types
import unittest
from typing import Any

from nova.virt.libvirt import config as vconfig

from nova_gpu.core.model import GPU, Product
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.roots import Roots
from nova_gpu.virt import diagnostics
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.inventory import vgpu_cards
from tests.fixtures import cards

CARD, FUNCTION = cards.addresses("0000:3b:00.0", "0000:3b:00.4")
GONE = Slot.parse("0000:af:00.4/nvidia-1155/0")


class VGPUsTest(unittest.TestCase):
    def test_a_vgpu_is_shown_with_its_card(self) -> None:
        product = Product("10de", "26b9", "L40S", "ada", 49152)
        gpu = GPU(CARD, product, 0x030200, numa_node=1)
        parents = {FUNCTION: Parent(Kind.TYPED, {}, {"nvidia-1155": 1})}
        shared = SharedCard(
            gpu, DividedCard({}, parents), {CARD: cards.reasons("it is in quarantine")}
        )
        look = vgpu_cards.Look({CARD: shared})
        assigned: Any = types.SimpleNamespace(whole=types.SimpleNamespace(groups=dict, cards=list))
        parts: Any = types.SimpleNamespace(look=look)
        roots = Roots(*[pathlib.Path("/nowhere")] * 3, ())
        config = vconfig.LibvirtConfigGuest()
        config.name, config.virt_type, config.os_type = "one", "kvm", "hvm"
        slot = Slot(FUNCTION, "nvidia-1155", 0)
        own = {s: guest_config.GuestVirtualFunction(s.parent, managed=False) for s in (slot, GONE)}
        guest_config.add_vgpus(config, own)
        guest: Any = types.SimpleNamespace(get_xml_desc=config.to_xml)
        self.assertEqual(
            {
                "gpu0_address": str(slot),
                "gpu0_product": "10de:26b9",
                "gpu0_name": "L40S",
                "gpu0_numa_node": 1,
                "gpu0_trouble": "it is in quarantine",
                "gpu0_module": 4,
                "gpu1_address": str(GONE),
            },
            diagnostics.gpus(guest, assigned, parts, roots, {CARD: 4}),
        )
