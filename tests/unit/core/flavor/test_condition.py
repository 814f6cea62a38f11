# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence

from oslo_utils import strutils

from nova_gpu.core import exception
from nova_gpu.core.flavor import condition, parsers, placement_policy
from nova_gpu.core.flavor.placement_policy import (
    Arrangement,
    Distribution,
    Near,
    PeerAccess,
    Topology,
    TopologyPolicy,
)

KVM = {"kvm": "qemu"}


def pairs(table: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Each reason with each of its texts"""
    return [(reason, text) for reason, texts in table.items() for text in texts]


class MatchTest(unittest.TestCase):
    def test_table(self) -> None:
        # text, what satisfies it, what does not
        for text, good, bad in (
            ("fermi", ["fermi", "FERMI"], ["kepler", "fermi2"]),
            ("s== fermi", ["fermi"], ["kepler", "ferm"]),
            ("s== Fermi", ["fermi"], ["kepler"]),
            ("s!= fermi", ["kepler"], ["fermi", "Fermi"]),
            ("<in> cdna", ["cdna", "cdna3"], ["rdna3"]),
            ("<in> DNA", ["cdna", "rdna3"], ["gcn5"]),
            ("<or> fermi <or> kepler", ["fermi", "kepler"], ["hopper"]),
            ("<or> fermi", ["fermi"], ["kepler"]),
            ("s== xe-hpc", ["xe-hpc", "xe_hpc", "XE_HPC"], ["xe-hpg"]),
            ("s!= xe-hpc", ["xe-hpg"], ["xe_hpc"]),
            # What Nova calls QEMU
            ("KVM", ["QEMU"], ["LXC"]),
            ("s!= KVM", ["LXC"], ["QEMU"]),
            ("<or> KVM <or> LXC", ["LXC", "QEMU"], ["fermi"]),
        ):
            stated = condition.parse_name("gpu_arch", text, KVM)
            for value in (*good, *bad):
                with self.subTest(text=text, value=value):
                    self.assertEqual(value in good, stated.matches(value))


class RefusalTest(unittest.TestCase):
    REFUSED: Mapping[str, Sequence[str]] = {
        "empty": ("", "   "),
        "compares numbers": ("= fermi", "== fermi", "!= fermi", ">= 2", "<= 2"),
        "needs an order": ("s<= fermi", "s< fermi", "s>= fermi", "s> fermi"),
        "needs a list": ("<all-in> fermi kepler",),
        "needs a name after it": ("s==", "<or>"),
        "one name": ("s== fermi kepler", "fermi kepler"),
        "an '<or>' before every name": ("<or> fermi kepler", "<or> fermi <or>", "<or> a b <or> d"),
        "is not a name": ("s==fermi", "fermi;drop", "s== f\N{LATIN SMALL LETTER E WITH ACUTE}rmi"),
        "cannot be asked for": ("s== unknown", "UNKNOWN", "s!= unknown"),
    }

    def test_refusals_name_key_value_reason_and_what_is_allowed(self) -> None:
        for reason, text in pairs(self.REFUSED):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                condition.parse_name("gpu_arch", text)
            for part in ("gpu_arch", repr(text), reason, condition.ALLOWED_NAMES):
                self.assertIn(part, str(caught.exception))

    def test_syntax_alone_takes_what_the_stock_filter_can_evaluate(self) -> None:
        for text in ("s== ironic", "VMware vCenter Server", "s< x", "<all-in> a b", "<in> x"):
            condition.check_syntax("hypervisor_type", text)
        for text in ("", "s==", "<or> a b", "= QEMU", ">= 2", "<in>"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec):
                condition.check_syntax("hypervisor_type", text)


class QuantityTest(unittest.TestCase):
    def test_table(self) -> None:
        for text, matching, others in (
            (">= 40960", ["40960", 81559], ["40959", None, "UNKNOWN", "", "-1"]),
            ("= 40960", [40960, 81559], [40959]),
            (">=40960", [40960], [40959]),
            ("40960", [40960, 81559], [40959]),
            ("== 40960", [40960], [40959, 40961]),
            ("<= 40960", [1, 40960], [40961, None]),
        ):
            stated = condition.parse_number("gpu:memory_mib", text)
            for value in matching:
                with self.subTest(text=text, value=value):
                    self.assertTrue(stated.matches(value))
            for value in others:
                with self.subTest(text=text, value=value):
                    self.assertFalse(stated.matches(value))

    def test_refused(self) -> None:
        for text in ("", ">=", "lots", "40 GiB", "0", "-1", "> 5", "!= 5", ">= 1 2", "1.5", "1e3"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                condition.parse_number("gpu:memory_mib", text)
            for part in ("gpu:memory_mib", repr(text), condition.ALLOWED_NUMBERS, ", in MiB"):
                self.assertIn(part, str(caught.exception))


class CountTest(unittest.TestCase):
    def test_all_that_mean_two(self) -> None:
        for text in ("= 2", "2", "== 2", ">= 2", "  2 ", "=  2", "=2", ">=2"):
            with self.subTest(text=text):
                self.assertEqual(2, parsers.parse_count(text))

    def test_refused(self) -> None:
        refused = {
            "exactly the number": ("", "=", "<= 2", "!= 2", "s== 2", "<or> 2", "<in> 2", "2 4"),
            "not a whole number": ("two", "-1", "2.0", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 40),
            "leave the property out": ("0", "= 0"),
            "no host has that many": ("1025",),
        }
        for reason, text in pairs(refused):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                parsers.parse_count(text)
            for part in ("gpus", repr(text), reason, parsers.ALLOWED_COUNTS):
                self.assertIn(part, str(caught.exception))


class SwitchTest(unittest.TestCase):
    def switched(self, text: str) -> bool:
        return parsers.parse_switch("gpu:option_rom", {"gpu:option_rom": text}, otherwise=True)

    def test_the_words_are_those_of_nova(self) -> None:
        for text in ("true", "True", "yes", "on", "1", "t", "y", "false", "no", "Off", "0", "f"):
            with self.subTest(text=text):
                self.assertEqual(strutils.bool_from_string(text, strict=True), self.switched(text))


class ArrangementTest(unittest.TestCase):
    def test_words(self) -> None:
        preferred = TopologyPolicy.PREFERRED
        for specs, expected in (
            ({}, placement_policy.ANY),
            ({"gpu:topology": "any"}, placement_policy.ANY),
            ({"gpu:topology": " NUMA "}, Arrangement(Topology.NUMA)),
            (
                {"gpu:topology": "nvlink", "gpu:topology_policy": "preferred"},
                Arrangement(Topology.NVLINK, preferred),
            ),
            ({"gpu:distribution": "pack"}, Arrangement(distribution=Distribution.PACK)),
            ({"gpu:near": " NIC "}, Arrangement(near=Near.NIC)),
            (
                {"gpu:near": "nvme", "gpu:near_policy": "required"},
                Arrangement(near=Near.NVME, near_policy=TopologyPolicy.REQUIRED),
            ),
            ({"gpu:peer_access": "None"}, placement_policy.ANY),
            (
                {"gpu:peer_access": "required", "hw:hide_hypervisor_id": "false"},
                Arrangement(peer_access=PeerAccess.REQUIRED),
            ),
            ({"gpu:peer_access": "none", "hide_hypervisor_id": "true"}, placement_policy.ANY),
        ):
            with self.subTest(specs=specs):
                self.assertEqual(expected, placement_policy.parse(specs))

    def test_refused(self) -> None:
        for specs, allowed in (
            ({"gpu:topology": "socket"}, "any or numa or nvlink"),
            ({"gpu:topology": "numa", "gpu:topology_policy": "no"}, "required or preferred"),
            ({"gpu:topology_policy": "required"}, "together with gpu:topology"),
            ({"gpu:distribution": ""}, "pack or spread"),
            ({"gpu:near": "disk"}, "any or nic or nvme"),
            ({"gpu:near": "nic", "gpu:near_policy": "any"}, "required or preferred"),
            ({"gpu:near_policy": "preferred"}, "together with gpu:near"),
            ({"gpu:peer_access": "auto"}, "none or preferred or required"),
            *(
                ({"gpu:peer_access": word, hiding: "Yes"}, f"none, or any value without {hiding}")
                for word in ("preferred", "required")
                for hiding in ("hw:hide_hypervisor_id", "hide_hypervisor_id")
            ),
        ):
            with self.subTest(specs=specs), self.assertRaises(exception.InvalidExtraSpec) as caught:
                placement_policy.parse(specs)
            self.assertIn(allowed, str(caught.exception))
