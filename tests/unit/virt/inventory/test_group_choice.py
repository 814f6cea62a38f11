# SPDX-License-Identifier: Apache-2.0
"""The groups that a start gets GPUs from, with a real Placement."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from nova import test
from nova.scheduler.client import report

from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.virt.inventory import group_choice
from tests.fixtures.cloud_gpus import PlacementWithGPUs

_A, _B = "CUSTOM_GPU_ARCH_FERMI", "CUSTOM_GPU_ARCH_KEPLER"


class ChooseTest(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        placement = self.useFixture(PlacementWithGPUs())
        host = placement.add_host("host1")
        self.fermi = placement.add_group(host, 4, used=1)
        self.kepler = placement.add_group(host, 4, "kepler", product_id="1023", reserved=2)
        self.vgpus = placement.add_vgpus(host, 8, "nvidia-35")
        placement.add_group(placement.add_host("host2"), 8, "ada", product_id="26b9")
        self.ours = {
            GroupKey("10de", "1091", DeliveryMode.LXC): self.fermi,
            GroupKey("10de", "1023", DeliveryMode.LXC): self.kepler,
            GroupKey.of_parts("10de", "1eb8", "nvidia-35"): self.vgpus,
        }
        self.client = report.SchedulerReportClient()

    def tried(self, specs: Mapping[str, str], *image: str) -> list[dict[str, int]]:
        """Return the amounts that it tries to allocate, while another instance is always faster."""
        tries: list[dict[str, int]] = []

        def allocate(amounts: Mapping[str, Mapping[str, int]]) -> None:
            tries.append({uuid: sum(resources.values()) for uuid, resources in amounts.items()})

        properties = {"traits_required": list(image)}
        instance: Any = SimpleNamespace(image_meta=SimpleNamespace(properties=properties))
        choice = self.client, "host1", instance, request.of(dict(specs)), self.ours, allocate
        self.refused = self.assertRaises(exception.NoneFree, group_choice.choose, *choice)
        return tries

    def test_in_which_order_what_is_tried(self) -> None:
        two = {"resources1:PGPU": "1", "resources2:PGPU": "1"}
        both, own = {self.fermi: 1, self.kepler: 1}, {self.fermi: 2}
        for specs, expected in (
            ({"gpus": "= 1"}, [{self.kepler: 1}, {self.fermi: 1}]),
            ({"gpus": "= 3"}, [{self.fermi: 3}]),
            ({"gpus": "= 4"}, []),
            ({"gpus": "= 1", "gpu_arch": "fermi"}, [{self.fermi: 1}]),
            ({"gpus": "= 1", "gpu_arch": "s!= fermi"}, [{self.kepler: 1}]),
            ({"gpus": "= 1", "gpu_arch": "ada"}, []),
            ({"gpus": "= 1", "gpu_arch": "unheard-of"}, []),
            ({"gpus": "= 3", "trait:CUSTOM_GPU_ARCH_NONE": "forbidden"}, [{self.fermi: 3}]),
            ({**two, "group_policy": "isolate"}, [both, both]),
            ({**two, f"trait1:{_A}": "required", f"trait2:{_B}": "forbidden"}, [own]),
            ({"gpus": "= 2", "vgpus": "= 2"}, [{self.kepler: 2, self.vgpus: 2}]),
        ):
            with self.subTest(specs):
                self.assertEqual(expected, self.tried(specs)[: len(expected) or None])

    def test_traits_that_the_image_requires(self) -> None:
        self.assertEqual([{self.fermi: 1}], self.tried({"gpus": "= 1"}, _A, "HW_CPU_X86_AVX"))

    def test_which_of_several_is_lacking(self) -> None:
        self.assertEqual([], self.tried({"gpus": "= 1", "vgpus": "= 9"}))
        self.assertIn("at most 8 free", str(self.refused))
        self.assertEqual([], self.tried({"gpus": "= 4", "vgpus": "= 1"}))
        self.assertIn("at most 3 free", str(self.refused))
