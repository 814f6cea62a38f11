# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.host.vgpu import sriov
from tests.fixtures import vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:82:00.0"


class SriovTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "26b9", totalvfs=32)

    def device(self, address: str) -> str:
        return f"{self.host.devices}/{address}"


class TestFunctions(SriovTestCase):
    def test_in_the_order_of_their_numbers(self) -> None:
        added = vgpu.add_functions(self.host, CARD, 12)
        functions = sriov.virtual_functions(self.device(CARD))
        found = [str(each) for each in functions.values()]
        self.assertEqual((added, added), (found, list(functions)))
        self.assertEqual("0000:82:01.7", found[-1])

    def test_without_the_file_whose_reading_may_wait(self) -> None:
        vgpu.add_functions(self.host, CARD, 2)
        (self.host.path(CARD) / "sriov_numvfs").unlink()
        self.assertEqual(2, len(sriov.virtual_functions(self.device(CARD))))

    def test_a_card_that_is_gone(self) -> None:
        self.assertRaises(OSError, sriov.virtual_functions, self.device("0000:99:00.0"))


class TestProfiles(SriovTestCase):
    def setUp(self) -> None:
        super().setUp()
        (self.virtual,) = vgpu.add_functions(self.host, CARD, 1)

    def profiles(self) -> sriov.Profiles | None:
        return sriov.profiles(self.device(self.virtual))

    def test_of_a_function_without_a_type(self) -> None:
        vgpu.set_profiles(self.host, self.virtual, vgpu.L40S)
        names = {
            "nvidia-1145": "NVIDIA L40S-1B",
            "nvidia-1147": "NVIDIA L40S-1Q",
            "nvidia-1155": "NVIDIA L40S-24Q",
            "nvidia-1156": "NVIDIA L40S-48Q",
        }
        self.assertEqual(
            sriov.Profiles(values.Parent(values.Kind.TYPED, dict.fromkeys(names, 1), {}), names),
            self.profiles(),
        )

    def test_an_unreadable_type_is_no_free_function(self) -> None:
        vgpu.set_profiles(self.host, self.virtual, vgpu.L40S)
        path = self.host.path(self.virtual) / "nvidia/current_vgpu_type"
        for text in ("", "none", "-1", "1147 1148"):
            path.write_text(text)
            self.assertRaises(ValueError, self.profiles)

    def test_what_names_tell(self) -> None:
        for name, memory_mib, slices in (
            ("NVIDIA L40S-48Q", 49152, None),
            ("GRID M60-0Q", 512, None),
            ("GRID M10-2B4", 2048, None),
            ("NVIDIA RTX6000-Ada-24Q", 24576, None),
            ("NVIDIA H200X-141C", 144384, None),
            ("NVIDIA H200X-1-18C", 18432, 1),
            ("GRID A100-1-5CME", 5120, 1),
            ("NVIDIA Something New", None, None),
        ):
            with self.subTest(name):
                self.assertEqual(
                    values.VGPUType("nvidia-1", name, memory_mib, slices=slices),
                    sriov.named("nvidia-1", name),
                )
