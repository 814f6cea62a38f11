# SPDX-License-Identifier: Apache-2.0
"""The real probe and the real nvidia-ml-py in a child process, over a library with NVML's ABI."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping

from nova_gpu.core import model
from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.nvidia import nvml, nvml_vgpus
from tests.fixtures import nvml as machines
from tests.fixtures import processes
from tests.fixtures.bases.nvml import FIRST, SECOND, THIRD, NvmlTestCase, cards, changed


def circle(facts: Mapping[model.PciAddress, nvml.NvmlFacts]) -> set[tuple[int, int]]:
    """How many peers each card has, and how wide"""
    return {(len(card.links), link.width) for card in facts.values() for link in card.links}


class TestMachines(NvmlTestCase):
    def query(self, *machine: machines.Card) -> Mapping[model.PciAddress, nvml.NvmlFacts]:
        self.library.say(*machine)
        facts = nvml.query(60)
        self.assertEqual({card.address for card in machine}, set(map(str, facts)))
        for card in machine:
            card_facts = facts[model.PciAddress.parse(card.address)]
            self.assertEqual(card.memory_mib, card_facts.memory_mib)
            self.assertEqual(card.name, f"NVIDIA {card_facts.name}")
            self.assertTrue((card_facts.uuid or "").startswith("GPU-"))
            self.assertEqual(card.capability, "{}.{}".format(*card_facts.compute_capability or ()))
        self.assertEqual("", self.log.output)
        return facts

    def test_eight_on_switches_that_are_not(self) -> None:
        for spelling in machines.ABSENT:
            facts = self.query(*machines.b200(spelling))
            self.assertEqual({(7, 18)}, circle(facts), spelling)
            self.assertEqual({"blackwell"}, {card.architecture for card in facts.values()})

    def test_links_of_which_is_told_only_how_many_lead_to_switches(self) -> None:
        machine_cards = [
            changed(
                dataclasses.replace(card, links=[machines.Link("!3", 255)] * 18),
                **{"field.147": "18"},
            )
            for card in machines.b200()
        ]
        self.assertEqual({(7, 18)}, circle(self.query(*machine_cards)))

    def test_a_driver_that_knows_the_first_form_of_the_fabric_only(self) -> None:
        machine = [
            dataclasses.replace(card, fabric=f"3 0 {index // 4} {'ab' * 16}")
            for index, card in enumerate(machines.b200())
        ]
        self.library.say(*machine, fabric_version="1")
        self.assertEqual({(3, 18)}, circle(nvml.query(60)))


class TestOneBadAnswer(NvmlTestCase):
    """It costs one fact of one card."""

    def test_of_the_binding(self) -> None:
        good = machines.b200()
        first = changed(good[0], name="hex:fffe", memory=machines.LOST, capability="!999")
        self.library.say(first, changed(good[1], uuid="hex:ff", **{"": "hex:ff"}), *good[2:])
        facts = nvml.query(60)
        self.assertEqual(7, len(facts))
        card_facts = facts[FIRST]
        self.assertEqual(
            (None, None, None),
            (card_facts.name, card_facts.memory_mib, card_facts.compute_capability),
        )
        self.assertEqual("blackwell", card_facts.architecture)
        self.assertEqual({(6, 18)}, circle(facts))
        self.assertNotIn(SECOND, facts)

    def test_a_link_in_the_middle(self) -> None:
        machine = machines.h100()
        broken = changed(machine[0], **{"link.3.state": "!999", "link.4.peer": "!6"})
        self.library.say(broken, *machine[1:])
        card_facts = nvml.query(60)[FIRST]
        self.assertEqual(
            {(7, 16)}, {(len(card_facts.links), link.width) for link in card_facts.links}
        )


class TestQuery(NvmlTestCase):
    def test_no_answer(self) -> None:
        for init, words in (
            ("!9", "nvmlInit: Driver Not Loaded"),
            ("abort", "the probe ended with -6: no message"),
        ):
            self.library.say(init=init)
            self.assertEqual({}, nvml.query(60))
            self.assertIn(words, self.log.output)
        self.binding("raise ImportError('No module named pynvml')")
        self.assertEqual({}, nvml.query(60))
        for words in ("nvidia-ml-py cannot be imported", "install nova-gpu[nvml]"):
            self.assertIn(words, self.log.output)
        self.assertEqual(3, self.log.output.count("NVML does not answer about"))

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

    def test_answer_that_is_none(self) -> None:
        for printed in ("[]", "driver says hello", '{"gpus": [{"address": "here"}]}'):
            self.binding(f"import os; print({printed!r}, flush=True); os._exit(0)")
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
        self.assertEqual(
            ["1/0", "10/0"], [instance.index for instance in nvml.query(60)[FIRST].mig or ()]
        )


class TypesTest(NvmlTestCase):
    def types(self, *cards: machines.Card) -> dict[str, VGPUType]:
        """Of the first card"""
        self.library.say(*cards)
        addresses = [PciAddress.parse(card.address) for card in cards]
        return dict(nvml_vgpus.parse(nvml_vgpus.ask(addresses, 60)).get(addresses[0], {}))

    def most(self, *cards: machines.Card) -> dict[str, int | None]:
        return {
            vgpu_type.name or "": vgpu_type.per_card
            for vgpu_type in self.types(*cards).values()
            if vgpu_type.per_card
        }

    def test_shared_by_time(self) -> None:
        types = self.types(*machines.l40s())
        self.assertEqual(
            VGPUType("nvidia-1147", "NVIDIA L40S-1Q", 1024, 4, (5120, 2880), 32),
            types["nvidia-1147"],
        )
        self.assertEqual(4, len(types))
        most = {vgpu_type.name: vgpu_type.per_guest for vgpu_type in types.values()}
        named = {"NVIDIA L40S-1B": 1, "NVIDIA L40S-24Q": 16}
        self.assertEqual(named, {name: n for name, n in most.items() if n is not None})

    def test_of_several_sizes(self) -> None:
        """As many as there are placements for, whose size and numbers are made up here"""
        card, _ = machines.l40s()
        places = {1147: "3:" + " ".join(map(str, range(0, 48, 3))), 1155: "24:0", 1156: "!3"}
        more = {f"vgpu.{number}.placements": text for number, text in places.items()}
        for mixed, most in (
            ("1", [(16, tuple(range(0, 48, 3)), 3), (1, (0,), 24), (1, (), None)]),
            ("0", [(32, (), None), (2, (), None), (1, (), None)]),
        ):
            types = self.types(dataclasses.replace(card, more={"mixed": mixed, **more}))
            vgpu_types = [types[f"nvidia-{number}"] for number in places]
            self.assertEqual(
                most,
                [
                    (vgpu_type.per_card, vgpu_type.places, vgpu_type.place_size)
                    for vgpu_type in vgpu_types
                ],
            )

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

    def test_none(self) -> None:
        """Of a card that is not in MIG mode, and where NVML does not answer"""
        (card,) = machines.h200_vgpu({})
        self.assertEqual({}, self.most(dataclasses.replace(card, mig=None)))
        self.library.say(init="!9")
        answer = nvml_vgpus.ask([PciAddress.parse("0000:0a:00.0")], 60)
        self.assertEqual({}, nvml_vgpus.parse(answer))
        self.assertIn("nvmlInit: Driver Not Loaded", self.log.output)

    def test_who_may_not_count_them(self) -> None:
        (card,) = machines.h200_vgpu({19: 4})
        refused = dataclasses.replace(card, more={"instances.19": machines.NO_PERMISSION})
        self.assertEqual(7, self.most(refused)["NVIDIA H200X-1-18C"])


FABRIC = f"3 0 0 {'0' * 32}"
NONE = 0xFFFFFFFF  # NVML's id of no instance

TODAY, OLD, LOST, OTHER = (PciAddress.parse(f"0000:{bus}:00.0") for bus in ("19", "3b", "4c", "5d"))


def machine() -> list[machines.Card]:
    """A card of today, one that retires pages and knows no more, one that is lost"""
    today, old, lost = (
        machines.Card(str(address), "NVIDIA H200", 9, 1024, "9.0") for address in (TODAY, OLD, LOST)
    )
    answers = {"ecc.1.0": "2", "ecc.1.1": "40", "remapped": "1 2 1 0", "field.230": "1"}
    return [
        dataclasses.replace(today, fabric=FABRIC, more=answers | {"utilization": "97 10"}),
        dataclasses.replace(old, more={"retirement_pending": "1"}),
        dataclasses.replace(lost, more={"pci": machines.LOST}),
    ]


class TestHealth(NvmlTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.library.say(*machine())

    def ask(self, *addresses: PciAddress) -> Mapping[PciAddress, NvmlHealth]:
        return nvml.health(addresses, 60)

    def test_what_each_card_knows(self) -> None:
        """An older binding knows no recovery action."""
        for action in (1, None):
            health = self.ask(TODAY, OLD, LOST, OTHER)
            self.assertEqual("", self.log.output)
            self.assertEqual("Not Found", health[OTHER].refused)
            today = NvmlHealth(False, 2, None, True, False, action, 3, 0, fabric_health=0)
            self.assertEqual(today, health[TODAY])
            self.assertEqual(NvmlHealth(retirement_pending=True), health[OLD])
            self.assertEqual(NvmlHealth(lost=True, refused="GPU is lost"), health[LOST])
            self.binding(machines.older_binding())

    def test_the_fabric(self) -> None:
        for fabric, state, status in (("1 0 0 0", 1, 0), ("3 999 0 0", 3, 999), ("0 0 0 0", 0, 0)):
            today = dataclasses.replace(machine()[0], fabric=fabric)
            self.library.say(today)
            health = self.ask(TODAY)[TODAY]
            self.assertEqual((state, status), (health.fabric_state, health.fabric_status))
        self.library.say(dataclasses.replace(today, fabric="3 0 0 0 16"))
        self.assertEqual(16, self.ask(TODAY)[TODAY].fabric_health)
        # What is in MIG mode needs none.
        self.library.say(dataclasses.replace(today, fabric="1 0 0 0", mig=()))
        self.assertIsNone(self.ask(TODAY)[TODAY].fabric_state)

    def test_nobody_asks_while_an_earlier_probe_hangs(self) -> None:
        hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        self.addCleanup(hanging.kill)
        self.addCleanup(nvml._hanging.clear)
        nvml._hanging.append(hanging)
        self.assertEqual({}, self.ask(TODAY))
        self.assertIn(f"an earlier probe (pid {hanging.pid}) still hangs", self.log.output)
        hanging.kill()
        hanging.wait()
        self.assertIn(TODAY, self.ask(TODAY))

    def test_what_the_driver_keeps_for_itself_is_not_used(self) -> None:
        """As on an idle H100 with driver 580: 480 MiB are reserved, and nvidia-smi says 0 MiB."""
        idle = dataclasses.replace(machine()[0], more={"memory": f"{81559 << 20} 0 {480 << 20}"})
        self.library.say(idle)
        self.assertEqual(nvml.Usage(None, 0, 81559 << 20), nvml.usage([TODAY], 60)[TODAY])
        self.binding(machines.older_binding())
        self.assertEqual(nvml.Usage(None, 480 << 20, 81559 << 20), nvml.usage([TODAY], 60)[TODAY])

    def test_who_computes(self) -> None:
        busy = dataclasses.replace(machine()[0], more={"computing": f"812 {NONE} {NONE} 813 9 0"})
        self.library.say(busy)
        expected = [(812, NONE, NONE), (813, 9, 0)]
        self.assertEqual(expected, nvml.computing(TODAY, 60))
        self.library.say(machine()[0])
        self.assertEqual([], nvml.computing(TODAY, 60), "the library does not say it")
        self.assertEqual([], nvml.computing(OTHER, 60))
        self.binding("raise SystemExit('down')")
        self.assertEqual([], nvml.computing(TODAY, 60))

    def test_usage(self) -> None:
        usage = nvml.usage([TODAY, OLD, OTHER], 60)
        self.assertEqual(nvml.Usage(97, 1 << 20, 1 << 30), usage[TODAY])
        self.assertEqual({TODAY: usage[TODAY], OLD: nvml.Usage(None, 1 << 20, 1 << 30)}, usage)
        self.assertEqual({}, nvml.usage([], 60))
        self.binding("raise SystemExit('down')")
        self.assertEqual({}, nvml.usage([TODAY], 60))
        self.assertIn("NVML does not answer about", self.log.output)
