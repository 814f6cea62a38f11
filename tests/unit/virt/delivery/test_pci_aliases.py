# SPDX-License-Identifier: Apache-2.0
"""``[pci]device_spec`` as Nova reads it."""

from __future__ import annotations

import json
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova.pci import whitelist

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from tests.fixtures import hosts
from tests.fixtures.bases.commands import HostTestCase

_CARD, _OTHER, _FUNCTION = "0000:3b:00.0", "0001:3c:1f.7", "0000:3b:00.4"
_SPECS: tuple[dict[str, Any], ...] = (
    {},
    *({"vendor_id": text} for text in ("10de", "10DE", " 10de ", "*", "8086", "-1")),
    *({"product_id": text} for text in ("25b6", "25B7", "0", "*")),
    {"vendor_id": "10de", "product_id": "25b7"},
    *(
        {"address": text}
        for text in (
            *(_CARD, _FUNCTION, _OTHER, "0:3b:0.0", "3b:00.", "3b:00.4", ":00.", "*:3b:*.*", ""),
            *("0000:3C:00.0", "1:3c:1f.7", "*:*:*.*", ".4", "*:*:1F.*", " 0000 : 3b : 00 . 0"),
        )
    ),
    *(
        {"address": parts}
        for parts in (
            *(
                {},
                {"bus": "3b"},
                {"bus": "3"},
                {"domain": "000"},
                {"domain": "0000$", "slot": "00"},
            ),
            {"domain": "0000", "bus": "3b", "slot": "00", "function": "0"},
            {"domain": ".*", "bus": "3[bc]", "slot": "00|1f", "function": "[0-3]"},
        )
    ),
    {"devname": "no0such"},
    {"remote_managed": "yes", "vendor_id": "10de"},
    {"managed": "no", "live_migratable": "1", "resource_class": "a2", "traits": "x,y"},
)


class DeviceSpecTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.root / "gpus")
        host.add_gpu(_CARD, "10de", "25b6", totalvfs=4)
        host.add_vf(_CARD, _FUNCTION, "25b7")
        host.add_gpu(_OTHER, "10de", "25b6")
        self.roots = host.roots
        # Nova asks the machine's own sysfs.
        name = "nova.pci.utils.is_physical_function"
        is_card = fixtures.MonkeyPatch(name, lambda *parts: parts == ("0000", "3b", "00", "0"))
        self.useFixture(is_card)

    def of_nova(self, address: str, texts: list[str]) -> Any:
        device = sysfs.device(address, self.roots)
        facts = dict(zip(("vendor_id", "product_id"), sysfs.ids(device), strict=True))
        facts |= {"address": address, "parent_addr": sysfs.link(device, "physfn")}
        return next((s for s in whitelist.Whitelist(texts).specs if s.match(facts)), None)

    def test_each_member_matches_as_nova_has_it(self) -> None:
        for spec in _SPECS:
            for texts in ([json.dumps(spec)], [json.dumps([{"vendor_id": "8086"}, spec])]):
                ours = DeviceSpec(texts)
                for address in (_CARD, _OTHER, _FUNCTION):
                    with self.subTest(spec, address=address):
                        novas, function = self.of_nova(address, texts), PciAddress.parse(address)
                        obstacle = ours.obstacle([function], self.roots)
                        self.assertEqual(novas is None, obstacle is None, obstacle)
                        expected = novas.get_tags() if novas else {}
                        self.assertEqual(expected, ours.tags(function, self.roots))
                        self.assertIn(json.dumps(spec) if novas else "", obstacle or "")

    def test_what_nova_refuses_is_refused(self) -> None:
        for text in (
            *("{", "1", '"10de"', "[1]", '{"vendor_id": "nvidia"}', '{"product_id": "10000"}'),
            *('{"address": "0:0:0:0.0"}', '{"address": "0000:3b:20.0"}', '{"address": ".8"}'),
            *('{"address": {"bus": "("}}', '{"managed": "perhaps"}'),
        ):
            with self.subTest(text):
                self.assertRaises(nova_exception.NovaException, whitelist.Whitelist, [text])
                refused = self.assertRaises(exception.InvalidOption, DeviceSpec, [text])
                self.assertIn(f"[pci]device_spec = {text!r}: ", str(refused))

    def test_a_number_is_no_text(self) -> None:
        """Of Python's own errors nothing is told."""
        refused = self.assertRaises(exception.InvalidOption, DeviceSpec, ['{"vendor_id": 4318}'])
        self.assertIn(": 4318 is no text of hexadecimal digits; ", str(refused))
