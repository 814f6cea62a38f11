# SPDX-License-Identifier: Apache-2.0
"""vGPU types by the real probe and nvidia-ml-py over a library with NVML's ABI"""

from __future__ import annotations

import dataclasses
import json

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.nvidia import nvml_vgpus
from tests.fixtures import nvml as machines
from tests.fixtures.bases.nvml import NvmlTestCase


class TypesTest(NvmlTestCase):
    def types(self, *cards: machines.Card) -> dict[str, VGPUType]:
        """Of the first card"""
        self.library.say(*cards)
        addresses = [PciAddress.parse(card.address) for card in cards]
        return dict(nvml_vgpus.parse(nvml_vgpus.ask(addresses, 60)).get(addresses[0], {}))

    def most(self, *cards: machines.Card) -> dict[str, int | None]:
        return {
            each.name or "": each.per_card for each in self.types(*cards).values() if each.per_card
        }

    def test_shared_by_time(self) -> None:
        types = self.types(*machines.l40s())
        self.assertEqual(
            VGPUType("nvidia-1147", "NVIDIA L40S-1Q", 1024, 4, (5120, 2880), 32),
            types["nvidia-1147"],
        )
        self.assertEqual(4, len(types))
        most = {each.name: each.per_guest for each in types.values()}
        named = {"NVIDIA L40S-1B": 1, "NVIDIA L40S-24Q": 16}
        self.assertEqual(named, {name: n for name, n in most.items() if n is not None})

    def test_of_several_sizes(self) -> None:
        """As many as there are placements for, whose numbers are made up here"""
        card, _ = machines.l40s()
        places = {1147: " ".join(map(str, range(0, 48, 3))), 1155: "0", 1156: "!3"}
        more = {f"vgpu.{number}.placements": text for number, text in places.items()}
        for mixed, most in (("1", [16, 1, 1]), ("0", [32, 2, 1])):
            types = self.types(dataclasses.replace(card, more={"mixed": mixed, **more}))
            self.assertEqual(most, [types[f"nvidia-{number}"].per_card for number in places])

    def test_by_gpu_instances(self) -> None:
        small, large = "NVIDIA H200X-1-18C", "NVIDIA H200X-3-71C"
        self.assertEqual({small: 7}, self.most(*machines.h200_vgpu({19: 7})))
        self.assertEqual({small: 4, large: 1}, self.most(*machines.h200_vgpu({9: 1, 19: 4})))
        self.assertEqual({}, self.most(*machines.h200_vgpu({})))

    def test_several_on_one_gpu_instance(self) -> None:
        most = self.most(*machines.rtx_pro_6000(4))
        name = "NVIDIA RTX Pro 6000 Blackwell DC-1"
        self.assertEqual({f"{name}-2Q": 48, f"{name}-3Q": 32, f"{name}-24Q": 4}, most)
        self.assertEqual(8, self.most(*machines.rtx_pro_6000(1))[f"{name}-3Q"])

    def test_who_may_not_count_them(self) -> None:
        (card,) = machines.h200_vgpu({19: 4})
        refused = dataclasses.replace(card, more={"instances.19": machines.NO_PERMISSION})
        self.assertEqual(7, self.most(refused)["NVIDIA H200X-1-18C"])

    def test_types_of_a_card_that_is_not_in_mig_mode(self) -> None:
        (card,) = machines.h200_vgpu({})
        self.assertEqual({}, self.most(dataclasses.replace(card, mig=None)))

    def test_one_bad_answer(self) -> None:
        first, second = machines.l40s()
        self.library.say(first, second)
        answer = json.loads(nvml_vgpus.ask([PciAddress.parse(first.address)], 60))
        answer["cards"][0]["types"][1]["memory"] = "much"
        (types,) = nvml_vgpus.parse(json.dumps(answer)).values()
        self.assertEqual(["nvidia-1145", "nvidia-1155", "nvidia-1156"], sorted(types))

    def test_no_driver(self) -> None:
        self.library.say(init="!9")
        answer = nvml_vgpus.ask([PciAddress.parse("0000:0a:00.0")], 60)
        self.assertEqual({}, nvml_vgpus.parse(answer))
        self.assertIn("nvmlInit: Driver Not Loaded", self.log.output)
