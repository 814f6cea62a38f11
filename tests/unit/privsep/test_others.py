# SPDX-License-Identifier: Apache-2.0
"""What is no card of ours is touched by no verb."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import nova_gpu.privsep.cleaning
import nova_gpu.privsep.nodes
import nova_gpu.privsep.vfio
import nova_gpu.privsep.vgpu
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import privileged_cards
from tests.fixtures.verbs import VerbTestCase

NIC, CARD, NOT_CHOSEN = "0000:51:00.0", "0000:3b:00.0", "0000:82:00.0"
INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class OursTest(VerbTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_device(NIC, "8086", "1592", class_code=0x020000, driver="ice", totalvfs=8)
        for address in (CARD, NOT_CHOSEN):
            self.host.add_gpu(address, "1002", "74a1", totalvfs=8)
        self.config(group="gpu", addresses=[CARD], virtual_functions=["1002:74a1=8"])
        self.config(state_path=str(self.host.root))

    def files(self) -> dict[str, bytes]:
        files = {}
        for folder, _, names in os.walk(self.host.roots.sysfs):
            for path in (pathlib.Path(folder, name) for name in names):
                files[str(path)] = b"" if path.is_symlink() else path.read_bytes()
        return files

    def test_others(self) -> None:
        before = self.files()
        call: Any = nova_gpu.privsep.vfio.give_to_host
        refusal = self.assertRaises(exception.AnotherRelease, call, CARD, caller="1.0.0")
        self.assertIn("upgraded on this host from 1.0.0 to", str(refusal))
        vgpu = nova_gpu.privsep.vgpu
        refused = {
            nova_gpu.privsep.cleaning.reset: exception.NotClean,
            nova_gpu.privsep.cleaning.run_command: exception.NotClean,
            nova_gpu.privsep.cleaning.end_processes: exception.NotClean,
            nova_gpu.privsep.vfio.give_to_guests: exception.BindingFailed,
            lambda a: vgpu.enable_functions(a, 8): exception.DeviceUnavailable,
            lambda a: vgpu.make_mig_instances(a, "1g.18gb"): exception.DeviceUnavailable,
            lambda a: vgpu.make(f"{a}/nvidia-64/0", INSTANCE): exception.DeviceUnavailable,
        }
        for address in (NIC, NOT_CHOSEN):
            for verb, error in refused.items():
                refusal = self.assertRaises(error, verb, address)
                self.assertEqual(privileged_cards.REASON, refusal.reason)
            self.assertEqual([], nova_gpu.privsep.nodes.open_to_guests(address, ["/dev/kfd"]))
        self.assertEqual(before, self.files())

    def test_what_the_option_does_not_say(self) -> None:
        before = self.files()
        for count in (4, 7):
            error = self.assertRaises(
                exception.DeviceUnavailable, nova_gpu.privsep.vgpu.enable_functions, CARD, count
            )
            self.assertIn(f"requests {count} for it, but the option has 8", error.reason)
        error = self.assertRaises(
            exception.DeviceUnavailable, nova_gpu.privsep.vgpu.make_mig_instances, CARD, "1g.18gb"
        )
        self.assertIn("the option has nothing", error.reason)
        self.assertEqual(before, self.files())

    def test_of_a_function(self) -> None:
        """Its card decides."""
        for card, function in ((CARD, "0000:3b:00.4"), (NOT_CHOSEN, "0000:82:00.4")):
            self.host.add_vf(card, function, "74b5")
        gpu = privileged_cards.card_of(PciAddress.parse("0000:3b:00.4"), CONF.gpu)
        self.assertEqual(CARD, str(gpu and gpu.address))
        for other in ("0000:82:00.4", "0000:99:00.0", NIC):
            self.assertIsNone(privileged_cards.card_of(PciAddress.parse(other), CONF.gpu))
