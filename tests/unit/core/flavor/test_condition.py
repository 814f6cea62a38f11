# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova.scheduler.filters import extra_specs_ops

from nova_gpu.core import exception
from nova_gpu.core.flavor import condition

KVM = {"kvm": "qemu"}


class MatchTest(unittest.TestCase):
    def test_table(self) -> None:
        # text, what satisfies it, what does not
        cases = (
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
        )
        for text, good, bad in cases:
            stated = condition.parse_name("gpu_arch", text)
            for value in good:
                with self.subTest(text=text, value=value):
                    self.assertTrue(stated.matches(value))
            for value in bad:
                with self.subTest(text=text, value=value):
                    self.assertFalse(stated.matches(value))

    def test_kvm_means_what_nova_calls_qemu(self) -> None:
        for text, qemu, lxc in (
            ("KVM", True, False),
            ("s== kvm", True, False),
            ("s!= KVM", False, True),
            ("<or> KVM <or> LXC", True, True),
            ("QEMU", True, False),
        ):
            with self.subTest(text=text):
                stated = condition.parse_name("hypervisor", text, KVM)
                self.assertEqual((qemu, lxc), (stated.matches("QEMU"), stated.matches("LXC")))

    def test_it_agrees_with_the_stock_filter(self) -> None:
        for text in ("fermi", "s== fermi", "s!= fermi", "<in> er", "<or> fermi <or> kepler"):
            for value in ("fermi", "kepler", "hopper"):
                with self.subTest(text=text, value=value):
                    self.assertEqual(
                        bool(extra_specs_ops.match(value, text)),
                        condition.parse_name("gpu_arch", text).matches(value),
                    )


class SpellingTest(unittest.TestCase):
    def test_text_has_the_word_that_was_written_and_what_it_means(self) -> None:
        for text, shown in (
            ("s== KVM", "kvm (qemu)"),
            ("QEMU", "qemu"),
            ("s!= KVM", "s!= kvm (qemu)"),
            ("<or> LXC <or> KVM", "<or> kvm (qemu) <or> lxc"),
            ("<or> KVM <or> QEMU", "kvm (qemu)"),
        ):
            with self.subTest(text=text):
                self.assertEqual(shown, str(condition.parse_name("hypervisor", text, KVM)))


class RefusalTest(unittest.TestCase):
    REFUSED = (
        ("", "empty"),
        ("   ", "empty"),
        ("= fermi", "compares numbers"),
        ("== fermi", "compares numbers"),
        ("!= fermi", "compares numbers"),
        (">= 2", "compares numbers"),
        ("<= 2", "compares numbers"),
        ("s<= fermi", "needs an order"),
        ("s< fermi", "needs an order"),
        ("s>= fermi", "needs an order"),
        ("s> fermi", "needs an order"),
        ("<all-in> fermi kepler", "needs a list"),
        ("s==", "needs a name after it"),
        ("<or>", "needs a name after it"),
        ("s== fermi kepler", "one name"),
        ("fermi kepler", "one name"),
        ("<or> fermi kepler", "an '<or>' before every name"),
        ("<or> fermi <or>", "an '<or>' before every name"),
        ("<or> a b c <or> d", "an '<or>' before every name"),
        ("s==fermi", "is not a name"),
        ("fermi;drop", "is not a name"),
        ("s== f\N{LATIN SMALL LETTER E WITH ACUTE}rmi", "is not a name"),
        ("s== unknown", "cannot be asked for"),
        ("UNKNOWN", "cannot be asked for"),
        ("s!= unknown", "cannot be asked for"),
    )

    def test_refusals_name_key_value_reason_and_what_is_allowed(self) -> None:
        for text, reason in self.REFUSED:
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

    def test_the_stock_filter_fails_on_numbers(self) -> None:
        # Why the syntax check refuses them for everybody.
        self.assertRaises(ValueError, extra_specs_ops.match, "QEMU", ">= 2")


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
            for part in ("gpu:memory_mib", repr(text), condition.ALLOWED_NUMBERS):
                self.assertIn(part, str(caught.exception))
