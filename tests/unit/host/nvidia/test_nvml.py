# SPDX-License-Identifier: Apache-2.0
"""The real probe and the real nvidia-ml-py in a child process, over a library with NVML's ABI."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from nova_gpu.core import model
from nova_gpu.core.model import MIGInstance
from nova_gpu.host.nvidia import nvml
from tests.fixtures import nvidia, processes
from tests.fixtures import nvml as machines
from tests.fixtures.bases.nvml import FIRST, SECOND, THIRD, NvmlTestCase, cards, changed


def circle(facts: Mapping[model.PciAddress, nvml.NvmlFacts]) -> set[tuple[int, int]]:
    """How many peers each card has, and how wide"""
    return {(len(card.links), link.width) for card in facts.values() for link in card.links}


class TestMachines(NvmlTestCase):
    def query(self, *machine: machines.Card) -> Mapping[model.PciAddress, nvml.NvmlFacts]:
        self.library.say(*machine)
        facts = nvml.query(60)
        self.assertEqual({each.address for each in machine}, set(map(str, facts)))
        for card in machine:
            told = facts[model.PciAddress.parse(card.address)]
            self.assertEqual(card.memory_mib, told.memory_mib)
            self.assertEqual(card.name, f"NVIDIA {told.name}")
            self.assertTrue((told.uuid or "").startswith("GPU-"))
            self.assertEqual(card.capability, "{}.{}".format(*told.compute_capability or ()))
        self.assertEqual("", self.log.output)
        return facts

    def test_eight_on_switches_that_are_not(self) -> None:
        for spelling in machines.ABSENT:
            facts = self.query(*machines.b200(spelling))
            self.assertEqual({(7, 18)}, circle(facts), spelling)
            self.assertEqual({"blackwell"}, {card.architecture for card in facts.values()})

    def test_links_of_which_is_told_only_how_many_lead_to_switches(self) -> None:
        told = [
            changed(
                dataclasses.replace(card, links=[machines.Link("!3", 255)] * 18),
                **{"field.147": "18"},
            )
            for card in machines.b200()
        ]
        self.assertEqual({(7, 18)}, circle(self.query(*told)))

    def test_a_driver_that_knows_the_first_form_of_the_fabric_only(self) -> None:
        machine = [
            dataclasses.replace(card, fabric=f"3 0 {index // 4} {'ab' * 16}")
            for index, card in enumerate(machines.b200())
        ]
        self.library.say(*machine, fabric_version="1")
        self.assertEqual({(3, 18)}, circle(nvml.query(60)))

    def test_mig(self) -> None:
        (card,) = self.query(*machines.a100_mig()).values()
        self.assertEqual(
            (
                MIGInstance(1, 0, "3g.20gb", 19968, 3, "MIG-0-1-0"),
                MIGInstance(9, 0, "1g.5gb", 4864, 1, "MIG-0-9-0"),
                MIGInstance(10, 0, "1g.5gb", 4864, 1, "MIG-0-10-0"),
            ),
            card.mig,
        )
        facts = self.query(*machines.h100_mig())
        self.assertEqual([7], [len(card.mig) for card in facts.values() if card.mig is not None])


class TestOneBadAnswer(NvmlTestCase):
    """It costs one fact of one card."""

    def test_of_the_binding(self) -> None:
        good = machines.b200()
        first = changed(good[0], name="hex:fffe", memory=machines.LOST, capability="!999")
        self.library.say(first, changed(good[1], uuid="hex:ff", **{"": "hex:ff"}), *good[2:])
        facts = nvml.query(60)
        self.assertEqual(7, len(facts))
        told = facts[FIRST]
        self.assertEqual((None, None, None), (told.name, told.memory_mib, told.compute_capability))
        self.assertEqual("blackwell", told.architecture)
        self.assertEqual({(6, 18)}, circle(facts))
        self.assertNotIn(SECOND, facts)

    def test_a_link_in_the_middle(self) -> None:
        machine = machines.h100()
        broken = changed(machine[0], **{"link.3.state": "!999", "link.4.peer": "!6"})
        self.library.say(broken, *machine[1:])
        told = nvml.query(60)[FIRST]
        self.assertEqual({(7, 16)}, {(len(told.links), link.width) for link in told.links})

    def test_of_the_probe(self) -> None:
        good = {
            "address": "00000000:19:00.0", "name": "NVIDIA H200", "architecture": 9,
            "memory": 2**30, "compute_capability": [9, 0], "uuid": "GPU-1", "nvlinks": [],
            "mig": None,
        }  # fmt: skip
        expected = nvml.NvmlFacts("H200", "hopper", 1024, (9, 0), "GPU-1")
        unknown: dict[str, tuple[Any, dict[str, Any]]] = {
            "memory": (1.5, {"memory_mib": None}),
            "compute_capability": ([1e999, 0], {"compute_capability": None}),
            "name": (5, {"name": None}),
            "uuid": ({}, {"uuid": None}),
            "mig": (3, {}),
            "nvlinks": ([[[]]], {"links": ()}),
            "architecture": ([], {"architecture": None}),
        }
        for field, (value, wanted) in unknown.items():
            other = {**good, "address": "00000000:3B:00.0", field: value}
            output = json.dumps({"gpus": [good, other, {"address": 7}, None]}).encode()
            facts = nvml._parse(output)
            self.assertEqual({FIRST, SECOND}, set(facts))
            self.assertEqual(expected, facts[FIRST])
            self.assertEqual(dataclasses.replace(expected, **wanted), facts[SECOND])
            self.assertIn(f"Cannot parse NVML's {field} of GPU {SECOND}", self.log.output)


class TestQuery(NvmlTestCase):
    def assertNothing(self, *why: str) -> None:
        self.assertEqual({}, nvml.query(60))
        for words in why:
            self.assertIn(words, self.log.output)
        self.assertEqual(1, self.log.output.count("NVML does not answer about"))

    def test_facts(self) -> None:
        facts = nvml.query(60)
        self.assertEqual([FIRST, SECOND, THIRD], sorted(facts))
        first = facts[FIRST]
        self.assertEqual(("H200", "hopper"), (first.name, first.architecture))
        self.assertEqual((143771, (9, 0)), (first.memory_mib, first.compute_capability))
        self.assertEqual(nvidia.gpu_uuid(str(FIRST)), first.uuid)
        self.assertEqual("", self.log.output)

    def test_links_are_direct_ones_and_those_through_a_common_switch(self) -> None:
        links = {
            address: {link.peer: link.width for link in card.links}
            for address, card in nvml.query(60).items()
        }
        self.assertEqual({SECOND: 3, THIRD: 2}, links[FIRST])
        self.assertEqual({FIRST: 3, THIRD: 2}, links[SECOND])
        self.assertEqual({FIRST: 2, SECOND: 2}, links[THIRD])

    def test_an_older_binding(self) -> None:
        expected = nvml.query(60)
        self.binding(machines.older_binding())
        self.assertEqual(expected, nvml.query(60))
        self.assertEqual("", self.log.output)

    def test_no_binding(self) -> None:
        self.binding("raise ImportError('No module named pynvml')")
        self.assertNothing("nvidia-ml-py cannot be imported", "install nova-gpu[nvml]")

    def test_no_driver(self) -> None:
        self.library.say(init="!9")
        self.assertNothing("nvmlInit: Driver Not Loaded")

    def test_library_that_breaks(self) -> None:
        self.library.say(init="abort")
        self.assertNothing("the probe ended with -6: no message")

    def test_answer_that_is_none(self) -> None:
        for source in (
            "import os; print('[]', flush=True); os._exit(0)",
            "import os; print('driver says hello', flush=True); os._exit(0)",
            'import os; print(\'{"gpus": [{"address": "here"}]}\', flush=True); os._exit(0)',
        ):
            self.binding(source)
            self.assertEqual({}, nvml.query(60))
        log = self.log.output
        self.assertEqual(2, log.count("cannot be understood"))
        self.assertEqual(1, log.count("Cannot parse NVML's address"))

    def test_overrun_ends_the_process_and_what_it_started(self) -> None:
        pids = self.folder / "pids"
        self.library.say(
            init=f"sh:sleep 300 & echo $PPID $! >{pids}.new && mv {pids}.new {pids}; sleep 300"
        )
        facts, limit_s = processes.hung(nvml.query, lambda _: pids.exists())
        self.assertEqual({}, facts)
        self.assertIn(f"did not answer within {limit_s} s ([gpu]nvml_timeout)", self.log.output)
        for pid in map(int, pids.read_text().split()):
            self.assertTrue(processes.ends(pid), pid)


class TestMIG(NvmlTestCase):
    """Of the first card the second MIG device is none, and of the last is not told what it is."""

    def divided(self, *more: str) -> None:
        first, second, *others = cards()
        layout = [
            machines.MIG(1, 0, "3g.71gb", 16384, 1),
            machines.MIG(5, 0, "2g.35gb", 16384, 1),
            machines.MIG(9, 0, "1c.1g.18gb+me", 16384, 1),
            machines.MIG(10, 0, "", 16384, 1),
        ]
        odd = {"mig.1": "!6", "mig.3.name": "NVIDIA H200", "mig.3.attributes": "!4"}
        first = dataclasses.replace(first, mig=layout, more=odd | dict.fromkeys(more, "!6"))
        self.library.say(first, changed(second, mig="0 1"), *others)

    def test_instances(self) -> None:
        self.divided()
        facts = nvml.query(60)
        expected = (
            MIGInstance(1, 0, "3g.71gb", 16384, 1, "MIG-0-1-0"),
            MIGInstance(9, 0, "1c.1g.18gb+me", 16384, 1, "MIG-0-9-0"),
            MIGInstance(10, 0, None, None, None, "MIG-0-10-0"),
        )
        self.assertEqual(expected, facts[FIRST].mig)
        self.assertEqual((None, None), (facts[SECOND].mig, facts[THIRD].mig))
        self.assertEqual("", self.log.output)

    def test_one_that_goes_meanwhile(self) -> None:
        self.divided("mig.2.compute_instance")
        self.assertEqual(["1/0", "10/0"], [each.index for each in nvml.query(60)[FIRST].mig or ()])
