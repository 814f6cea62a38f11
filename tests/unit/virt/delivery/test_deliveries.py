# SPDX-License-Identifier: Apache-2.0
"""Which ways a host has, and which of what a guest is given goes which way."""

from __future__ import annotations

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core import exception, model
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, VGPUKind
from nova_gpu.virt.delivery import deliveries, vgpu_deliveries
from tests.fixtures import cards, vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:3b:00.0"
ONE, TWO, THREE = (Slot.parse(f"0000:3b:00.4/nvidia-63/{number}") for number in range(3))


class WaysTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config

    def ways(self, virt_type: str) -> deliveries.Deliveries:
        self.config(group="libvirt", virt_type=virt_type)
        return deliveries.Deliveries(
            self.host.roots, lambda _: None, libvirt_version=lambda: 10000000
        )

    def test_what_a_guest_is_given(self) -> None:
        """In its order, so that its devices come in it; whole cards' way sees every guest."""
        ways = self.ways("kvm")
        card = cards.card(CARD)
        kinds = {ONE: VGPUKind.MEDIATED, TWO: VGPUKind.PLAIN, THREE: VGPUKind.PLAIN}
        mediated, plain = ways.parts[VGPUKind.MEDIATED], ways.parts[VGPUKind.PLAIN]
        self.assertEqual([(ways.whole, [])], list(ways.by_grant([], kinds.__getitem__)))
        self.assertEqual(
            [(ways.whole, [card]), (mediated, [ONE]), (plain, [TWO, THREE])],
            list(ways.by_grant([card, ONE, TWO, THREE], kinds.__getitem__)),
        )
        self.assertEqual(
            [(ways.whole, []), (plain, [TWO]), (mediated, [ONE])],
            list(ways.by_grant([TWO, ONE], kinds.__getitem__)),
        )
        # A part of which nothing is known
        self.assertEqual(VGPUKind.INSTANCE, self.ways("lxc").part(VGPUKind.MEDIATED).kind)
        self.assertEqual(VGPUKind.MEDIATED, ways.part(VGPUKind.INSTANCE).kind)

    def test_what_divides_cards(self) -> None:
        """A card that an option names which the host ignores is not offered."""
        vf, mig = {"8086:56c0": 4}, {"10de:2335": "1g.18gb"}
        for option, value, kind, other, wanted, verb in (
            ("virtual_functions", "8086:56c0=4", "kvm", "lxc", vf, "enable_functions"),
            ("mig_profile", "10de:2335=1g.18gb", "lxc", "kvm", mig, "make_mig_instances"),
        ):
            self.config(group="gpu", **{option: [value]})
            ways = self.ways(kind)
            self.assertEqual(wanted, ways.wanted)
            with fixtures.MockPatch(f"nova_gpu.privsep.vgpu.{verb}", return_value=7) as patch:
                ways.divide(CARD, *wanted.values())
            (call,) = patch.mock.mock_calls
            self.assertEqual([CARD, *wanted.values()], [*call.args, *call.kwargs.values()])
            product = model.Product(*value.partition("=")[0].split(":"))
            gpu, none = cards.placed(CARD, product=product), cards.placed(CARD)
            reason = self.ways(other).ignored(gpu)
            self.assertIn(f"[gpu]{option} names it in vain", reason or "")
            for host, card in ((other, none), (kind, gpu)):
                self.assertIsNone(self.ways(host).ignored(card))
            self.config(group="gpu", **{option: []})
        self.config(group="gpu", vgpu_mixed_sizes=["10de:2335=false"])
        gpu = cards.placed(CARD, product=model.Product("10de", "2335"))
        self.assertEqual([None, None], [self.ways(kind).ignored(gpu) for kind in ("kvm", "lxc")])
        self.config(group="gpu", virtual_functions=["many"])
        self.assertRaises(exception.InvalidOption, self.ways, "kvm")

    def test_partition_modes_stay_as_they_were_if_they_cannot_be_read(self) -> None:
        before = {PciAddress.parse(CARD): "cpx-nps1"}
        self.host.add_gpu(CARD, "1002", "74a1")
        self.assertEqual({}, vgpu_deliveries.modes(self.host.gpus(), self.host.roots, before))
        vgpu.set_partition(self.host, CARD, "SPX", "NPS1")
        lost = OSError("no daemon")
        with fixtures.MockPatch("nova_gpu.privsep.vgpu.partition_modes", side_effect=lost):
            modes = vgpu_deliveries.modes(self.host.gpus(), self.host.roots, before)
        self.assertEqual(before, modes)
