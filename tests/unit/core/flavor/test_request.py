# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import condition, request
from nova_gpu.core.flavor.request_group import GroupRequest

FERMI = "CUSTOM_GPU_ARCH_FERMI"
KEPLER = "CUSTOM_GPU_ARCH_KEPLER"


def refusal(extra_specs: dict[str, str]) -> str:
    try:
        found = request.parse(extra_specs)
    except exception.InvalidExtraSpec as e:
        return str(e)
    raise AssertionError(f"{extra_specs} is read as {found}")


class CountTest(unittest.TestCase):
    def test_all_that_mean_two(self) -> None:
        for text in ("= 2", "2", "== 2", ">= 2", "  2 ", "=  2"):
            with self.subTest(text=text):
                self.assertEqual(2, request.parse_count(text))

    def test_bounds(self) -> None:
        self.assertEqual(1, request.parse_count("1"))
        self.assertEqual(1024, request.parse_count("= 1024"))

    def test_refused(self) -> None:
        for text, reason in (
            ("", "exactly the number"),
            ("=", "not a whole number"),
            ("=2", "not a whole number"),
            ("<= 2", "exactly the number"),
            ("!= 2", "exactly the number"),
            ("s== 2", "exactly the number"),
            ("<or> 2 <or> 4", "exactly the number"),
            ("<in> 2", "exactly the number"),
            ("2 4", "exactly the number"),
            ("two", "not a whole number"),
            ("-1", "not a whole number"),
            ("2.0", "not a whole number"),
            ("\N{ARABIC-INDIC DIGIT TWO}", "not a whole number"),
            ("0", "leave the property out"),
            ("= 0", "leave the property out"),
            ("1025", "no host has that many"),
            ("9" * 40, "not a whole number"),
        ):
            with (
                self.subTest(text=text),
                self.assertRaises(exception.InvalidExtraSpec) as caught,
            ):
                request.parse_count(text)
            for part in ("gpus", repr(text), reason, request.ALLOWED_COUNTS):
                self.assertIn(part, str(caught.exception))


class ParseTest(unittest.TestCase):
    def test_the_blueprints_flavor(self) -> None:
        asked = request.parse(
            {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC", "cpu_arch": "x86_64"}
        )
        assert asked is not None
        self.assertEqual(2, asked.count)
        self.assertEqual(condition.parse("gpu_arch", "fermi"), asked.architecture)
        self.assertEqual(condition.parse("hypervisor", "lxc"), asked.hypervisor)
        self.assertEqual((GroupRequest("", 2),), asked.groups)
        self.assertFalse(asked.counted)

    def test_no_gpu_asked_for(self) -> None:
        for specs in (
            {},
            {"hypervisor": "s== LXC"},
            {"hypervisor_type": "s== ironic"},
            {"resources:PGPU": "0"},
            {"resources:VGPU": "1", f"trait:{FERMI}": "required"},
            {"resources:CUSTOM_PGPU": "1"},
        ):
            with self.subTest(specs=specs):
                self.assertIsNone(request.parse(specs))

    def test_novas_own_keys(self) -> None:
        asked = request.parse(
            {
                "resources:PGPU": "2",
                f"trait:{FERMI}": "required",
                f"trait:{KEPLER}": "forbidden",
                "trait:HW_GPU_API_VULKAN": "required",
                "trait:HW_CPU_X86_AVX2": "required",
                "trait_other:CUSTOM_GPU": "required",
                "trait:CUSTOM_GPU_MODEL_X": "perhaps",
            }
        )
        assert asked is not None
        expected = GroupRequest("", 2, frozenset({FERMI, "HW_GPU_API_VULKAN"}), frozenset({KEPLER}))
        self.assertEqual((2, (expected,), True), (asked.count, asked.groups, asked.counted))

    def test_suffixed_groups_are_summed_with_their_own_traits(self) -> None:
        asked = request.parse(
            {
                "resources1:PGPU": "1",
                "trait1:CUSTOM_ANY": "required",
                "resources_gpu:PGPU": "3",
                f"trait_gpu:{FERMI}": "required",
                f"trait:{KEPLER}": "required",
            }
        )
        assert asked is not None
        self.assertEqual(4, asked.count)
        self.assertEqual(
            (
                GroupRequest("1", 1, frozenset({"CUSTOM_ANY"})),
                GroupRequest("_gpu", 3, frozenset({FERMI})),
            ),
            asked.groups,
        )

    def test_both_at_once_agree(self) -> None:
        for specs in (
            {"gpus": "= 2", "resources:PGPU": "2"},
            {"gpus": "2", "resources1:PGPU": "1", "resources2:PGPU": "1"},
        ):
            with self.subTest(specs=specs):
                asked = request.parse(specs)
                assert asked is not None
                self.assertEqual((2, True), (asked.count, asked.counted))

    def test_contradictions_and_nonsense(self) -> None:
        for specs, parts in (
            ({"gpus": "= 2", "resources:PGPU": "3"}, ["gpus='= 2'", "resources:PGPU says 3"]),
            ({"gpus": "= 2", "resources:PGPU": "0"}, ["gpus='= 2'", "resources:PGPU says 0"]),
            ({"gpus": "lots"}, ["gpus='lots'"]),
            ({"resources:PGPU": "two"}, ["resources:PGPU='two'", "not a number of GPUs"]),
            ({"resources:PGPU": "1025"}, ["resources:PGPU='1025'", "from 0 to 1024"]),
            ({"resources_a:PGPU": "-2"}, ["resources_a:PGPU='-2'"]),
            ({"gpu_arch": "s== fermi"}, ["gpu_arch='s== fermi'", "asks for no GPU"]),
            ({"gpu_arch": "s== fermi", "resources:PGPU": "0"}, ["asks for no GPU"]),
            ({"gpu:model": "H200"}, ["gpu:model='H200'", "asks for no GPU"]),
            ({"gpu:memory_mib": "1"}, ["gpu:memory_mib='1'", "asks for no GPU"]),
            ({"gpu:topology": "numa"}, ["gpu:topology='numa'", "asks for no GPU"]),
            ({"gpu:distribution": "pack"}, ["gpu:distribution='pack'", "asks for no GPU"]),
            ({"gpus": "1", "gpu_arch": "> fermi"}, ["gpu_arch='> fermi'"]),
            ({"gpus": "1", "hypervisor": "= LXC"}, ["hypervisor='= LXC'", "numbers"]),
            (
                {"gpus": "1", "hypervisor": "s== LXC", "hypervisor_type": "s== QEMU"},
                ["hypervisor_type='s== QEMU'", "hypervisor says 's== LXC'"],
            ),
        ):
            with self.subTest(specs=specs):
                text = refusal(specs)
                for part in parts:
                    self.assertIn(part, text)

    def test_a_refusal_fits_into_a_fault(self) -> None:
        prefix = "No valid host was found. Scheduling failed: "
        for specs in (
            {"gpus": "<or> 2 <or> 4"},
            {"gpus": "1", "gpu_arch": "<all-in> fermi kepler"},
            {"gpus": "1", "hypervisor": "s== LXC", "hypervisor_type": "s!= QEMU"},
        ):
            with self.subTest(specs=specs):
                self.assertLess(len(prefix + refusal(specs)), 255)

    def test_the_older_spelling_of_hypervisor(self) -> None:
        for specs in (
            {"gpus": "1", "hypervisor_type": "s== LXC"},
            {"gpus": "1", "hypervisor_type": "s== LXC", "hypervisor": "lxc"},
        ):
            asked = request.parse(specs)
            with self.subTest(specs=specs):
                assert asked is not None and asked.hypervisor is not None
                self.assertTrue(asked.hypervisor.matches("LXC"))

    def test_kvm(self) -> None:
        stated = request.parse_hypervisor({"hypervisor": "s== KVM"})
        assert stated is not None
        self.assertTrue(stated.matches("QEMU"))
        self.assertFalse(stated.matches("LXC"))
