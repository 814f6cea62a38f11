# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from collections.abc import Collection
from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import affinity
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, device_uuid
from nova_gpu_migrate.core import former, leave_plan
from nova_gpu_migrate.core.former import AliasRequest
from nova_gpu_migrate.core.stock_holding import (
    SHELVED,
    Alias,
    Domain,
    Hardware,
    MdevType,
    StockDelivery,
    StockHolding,
    StockInstance,
    StockMdev,
    StockReturn,
)

ONE, TWO = PciAddress(0, 1, 0, 0), PciAddress(0, 2, 0, 0)
A2 = Alias("a2", (ONE, TWO), {})
L4 = Alias("l4", (PciAddress(0, 3, 0, 0),), {})
MINE = "6f70656e-7374-4163-8b20-697320667265"
FUNCTION = PciAddress(0, 1, 0, 4)
MIG = Slot(PciAddress(0, 9, 0, 0), "1g.18gb", 900)
_PARENT = Parent(VGPUKind.MEDIATED, {}, {})
HOST = Hardware({}, {}, {}, {}, {card: DividedCard({}, {card: _PARENT}) for card in (ONE, TWO)})
FLAVOR = {"gpus": "= 1", "gpu:model": "s== A2", "hypervisor": "s== QEMU", "hw:x": "y"}


def instance(*counted: PciAddress, **changes: Any) -> StockInstance:
    own = StockInstance("mine", "g1", FLAVOR, "active", counted=frozenset(counted))
    return dataclasses.replace(own, **changes)


def judge(*args: Any, **kwargs: Any) -> StockReturn:
    item = leave_plan.judge(*args, **kwargs)
    assert item
    return item


def judge_shelved(own: StockInstance, known: Collection[Alias]) -> StockReturn:
    item = leave_plan.judge_shelved(own, known)
    assert item
    return item


class JudgeTest(unittest.TestCase):
    def judge(
        self,
        own: StockInstance,
        *aliases: Alias,
        domain: frozenset[PciAddress] | None = None,
        record: Collection[Alias] = (),
    ) -> StockReturn:
        domains = {"mine": Domain(own.counted if domain is None else domain)}
        return judge(own, domains, HOST, aliases or (A2, L4), former=record)

    def assertObstacle(self, item: StockReturn, *parts: str) -> None:
        (obstacle,) = item.obstacles
        for part in parts:
            self.assertIn(part, str(obstacle))

    def test_what_the_flavor_has_besides(self) -> None:
        """It asks already where nova-compute has written it back after a run that was refused."""
        asks = {"pci_passthrough:alias": "a2:1, nic:1"}
        counted = {"resources:PGPU": "1", "pci_passthrough:alias": "nic:1"}
        for own, alias, unset in (
            (instance(ONE, extra_specs=counted), "nic:1,a2:1", ("resources:PGPU",)),
            (instance(ONE, extra_specs=asks), " nic:1,a2:1", ()),
            (instance(ONE, extra_specs=asks, recorded={TWO: "a2"}), " nic:1,a2:2", ()),
        ):
            item = self.judge(own)
            self.assertEqual(({"pci_passthrough:alias": alias}, unset), (item.set, item.unset))

    def test_the_policy_that_an_option_sets(self) -> None:
        """It becomes the flavor's, unless other devices would have it as well."""
        for stated, default, specs, added in (
            (None, "preferred", {}, "preferred"),
            (None, "legacy", {}, None),
            (None, None, {}, None),
            ("required", "preferred", {}, None),
            (None, "preferred", {"pci_passthrough:alias": "nic:1"}, None),
        ):
            with self.subTest(stated=stated, default=default, specs=specs):
                words = {"resources:PGPU": "1", **specs}
                policies = {"stated_policy": stated, "default_policy": default}
                item = self.judge(instance(ONE, extra_specs=words, **policies))
                self.assertEqual(added, item.set.get(affinity.EXTRA_SPEC))

    def test_request_groups(self) -> None:
        """Nothing is left that stock Nova would ask Placement for."""
        words = (
            "resources1:PGPU",
            "resources1:CUSTOM_GPU_MODEL_A2",
            "trait1:CUSTOM_GPU_ARCH_AMPERE",
            "trait:CUSTOM_GPU_MODEL_A2",
            "trait:CUSTOM_GPU",
        )
        others = {"resources2:CUSTOM_FPGA": "1", "trait2:CUSTOM_X": "required"}
        others["trait:CUSTOM_GPU_NODE"] = "forbidden"  # the operator's
        specs = {**dict.fromkeys(words, "1"), **others}
        self.assertEqual(words, self.judge(instance(ONE, extra_specs=specs)).unset)

    def test_nothing_of_nova_gpu(self) -> None:
        own = instance(extra_specs={"hw:x": "y", "hypervisor": "s== QEMU"})
        self.assertIsNone(leave_plan.judge(own, {}, HOST, [A2]))

    def test_what_has_stayed_stock_novas(self) -> None:
        """Its words may be those of both drivers."""
        own = instance(extra_specs={"gpu_arch": "turing"}, recorded={ONE: "a2"})
        host = dataclasses.replace(HOST, cards_by_function={ONE: ONE})
        self.assertIsNone(leave_plan.judge(own, {}, host, [A2]))
        made = dataclasses.replace(HOST, mediated={"made": StockMdev(ONE, ONE, "nvidia-35")})
        domains = {"mine": Domain(mediated=frozenset(["made"]))}
        own = instance(extra_specs={"vgpus": "= 1"})
        self.assertIsNone(leave_plan.judge(own, domains, made, [A2]))
        self.assertIsNotNone(leave_plan.judge(own, {}, made, [A2]))
        words = {"vgpus": "= 1", "pci_passthrough:alias": "a2:1"}
        shelved = instance(vm_state=SHELVED, extra_specs=words)
        self.assertIsNone(leave_plan.judge_shelved(shelved, [A2]))
        self.assertIsNotNone(leave_plan.judge_shelved(shelved, [L4]))

    def test_what_runs_without_gpus(self) -> None:
        """Its flavor had nova-gpu's words before there was nova-gpu."""
        host = dataclasses.replace(HOST, cards_by_function={ONE: ONE})
        nothing, domains = {"mine": Domain()}, {"mine": Domain(frozenset([ONE]))}
        self.assertIsNone(leave_plan.judge(instance(), nothing, host, [A2]))
        self.assertIsNone(leave_plan.judge(instance(vm_state="paused"), nothing, host, [A2]))
        for own, named in (
            (instance(), domains),
            (instance(), {"mine": Domain(slots=frozenset([MIG]))}),
            (instance(), {}),
            (instance(vm_state="stopped"), nothing),
            (instance(task_state="rebooting_hard"), nothing),
            (instance(migration="migrating"), nothing),
        ):
            with self.subTest(own):
                self.assertTrue(judge(own, named, host, [A2]).obstacles)

    def test_what_is_in_the_way(self) -> None:
        item = self.judge(instance(ONE), domain=frozenset())
        self.assertObstacle(item, "0000:01:00.0", "no such device")
        for own, *parts in (
            (instance(ONE, task_state="rebooting"), "rebooting", "wait"),
            (instance(ONE, migration="migrating"), "migrating", "wait"),
            (instance(slots=frozenset([MIG])), str(MIG), "to no instance", "resize"),
            (instance(vm_state="stopped"), "has none now", "start it"),
            (instance(vm_state="stopped", extra_specs={"gpus": "x"}), "has none now", "start it"),
        ):
            with self.subTest(own):
                self.assertObstacle(self.judge(own), *parts)  # type: ignore[arg-type]

    def test_virtual_functions(self) -> None:
        slots = frozenset([Slot(FUNCTION, "nvidia-35", 0)])
        parts = {ONE: DividedCard({}, {FUNCTION: Parent(VGPUKind.TYPED, {}, {"nvidia-35": 1})})}
        host = dataclasses.replace(HOST, parts=parts)
        own = instance(slots=slots, extra_specs={"vgpus": "= 1", "vgpu_type": "nvidia-35"})
        domain = Domain(frozenset([FUNCTION]))
        item = judge(own, {"mine": domain}, host, [Alias("q", (FUNCTION,), {})])
        self.assertEqual(((), {FUNCTION: "q"}), (item.obstacles, item.functions))
        self.assertEqual({"pci_passthrough:alias": "q:1"}, item.set)
        self.assertEqual(("vgpus", "vgpu_type"), item.unset)

    def test_mediated_devices(self) -> None:
        """Nova counts them as the options say, at each function."""
        slots = [Slot(card, "nvidia-35", 0) for card in (ONE, TWO)]
        specs = {"vgpus": "= 2", "resources:VGPU": "2", "trait:CUSTOM_GPU": "required"}
        own = instance(uuid=MINE, slots=frozenset(slots), extra_specs=specs)
        domain = Domain(frozenset(), frozenset(device_uuid(MINE, slot) for slot in slots))
        one = MdevType("nvidia-35", "CUSTOM_Q", frozenset([str(ONE)]))
        for types, *parts in (
            ((), "enabled_mdev_types", "nvidia-35 at 0000:01:00.0", "device_addresses"),
            ((MdevType("nvidia-36", "VGPU"),), "nvidia-35 at 0000:01:00.0"),
            ((one, MdevType("nvidia-36", "VGPU")), "nvidia-35 at 0000:02:00.0"),
        ):
            item = judge(own, {MINE: domain}, HOST, (), types)
            for part in parts:
                self.assertIn(part, " ".join(map(str, item.obstacles)))
        types = (one, MdevType("nvidia-35", "VGPU"))
        item = judge(own, {MINE: domain}, HOST, (), types)
        self.assertEqual(((), {}), (item.obstacles, item.functions))
        self.assertEqual(dict(zip(slots, ("CUSTOM_Q", "VGPU"), strict=True)), item.mediated)
        self.assertEqual({"resources:CUSTOM_Q": "1", "resources:VGPU": "1"}, item.set)
        self.assertEqual(("vgpus", "trait:CUSTOM_GPU"), item.unset)
        (obstacle, *_) = leave_plan.judge(own, {}, HOST, (), types).obstacles  # type: ignore[union-attr]
        self.assertIn("no such device", str(obstacle))

    def test_what_it_came_with(self) -> None:
        """Its aliases, not others that give the same, as long as its devices fit them."""
        before = {"pci_passthrough:alias": "nic:1, any:1,a2:1", "gpu:model": "s== other"}
        request = AliasRequest(({"vendor_id": "10de"},), "required")
        taken = {"gpus": "= 2", "gpu:model": "s== A2", "pci_passthrough:alias": "nic:1"}
        record = former.Former(
            *("g1", taken, before, {"any": request, "a2": request}, {ONE: "any", TWO: "a2"})
        )
        self.assertEqual(record, former.of_metadata({"image_x": "y", **record.to_metadata()}))
        other = PciAddress(0, 7, 0, 0)
        any_, sound = Alias("any", (ONE, TWO, other), {}), PciAddress(0, 1, 0, 1)
        specs = {**taken, "trait:CUSTOM_GPU_NODE": "required", "vgpu_type": "x"}
        own = instance(ONE, TWO, extra_specs=specs, former=record)
        host = dataclasses.replace(HOST, cards_by_function={ONE: ONE, sound: ONE})
        sounds = Alias("sound", (), {}, (sound,))
        for what, changes, functions, words in (
            ("unchanged", {}, {ONE: "any", TWO: "a2"}, before),
            (
                "shelved when it was taken over",
                {"former": dataclasses.replace(record, functions={})},
                {ONE: "a2", TWO: "any"},
                before,
            ),
            ("moved", {"counted": frozenset([TWO, other])}, {TWO: "a2", other: "any"}, before),
            (
                "with another function",
                {"more": [sound]},
                {ONE: "any", TWO: "a2", sound: "sound"},
                before | {"pci_passthrough:alias": "nic:1, any:1,a2:1,sound:1"},
            ),
            ("fewer", {"counted": frozenset([ONE])}, {ONE: None}, None),
            ("resized", {"flavor": "g2"}, {ONE: None, TWO: "a2"}, None),
        ):
            with self.subTest(what):
                more = changes.pop("more", ())
                it = dataclasses.replace(own, **changes)
                domains = {"mine": Domain(it.counted | {*more})}
                known = [A2, any_, sounds]
                item = judge(it, domains, host, known, former=[A2, any_])
                self.assertEqual(words is not None, item.obstacles == ())
                if words is not None:
                    self.assertEqual((functions, words), (item.functions, item.set))
                    self.assertEqual((("gpus",), record.requests), (item.unset, item.requests))
                else:
                    self.assertEqual({}, item.requests)
                unfit = "do not fit" in " ".join(item.remarks)
                self.assertEqual(what == "fewer", unfit)
        # One that has no such alias any more, as after it was renamed
        (remark,) = self.judge(own, L4, record=[A2, any_]).remarks
        self.assertIn("a2, any", remark)
        # Shelved since, with either alias in [pci]alias or none
        shelved = dataclasses.replace(own, vm_state=SHELVED, counted=frozenset())
        for known in ([A2, any_], [L4]):
            item = judge_shelved(shelved, known)
            self.assertEqual(
                (before, ("gpus",), record.requests), (item.set, item.unset, item.requests)
            )
            self.assertEqual(([], known == [L4]), (list(item.obstacles), bool(item.remarks)))
        resized = dataclasses.replace(shelved, flavor="g2")
        item = judge_shelved(resized, [L4])
        self.assertObstacle(item, "say what it asks for: none")
        for text, expected in (("=2", "l4:2"), ("2", "l4:2"), ("", None)):
            alone = dataclasses.replace(resized, extra_specs={"gpus": text}, former=None)
            own_words = leave_plan.judge_shelved(
                alone, [dataclasses.replace(L4, set={"gpus": "= 1"})]
            )
            alias = own_words and own_words.set["pci_passthrough:alias"]
            self.assertEqual(expected, alias, text)

    def test_the_groups_and_traits_that_it_came_with(self) -> None:
        slots = [Slot(card, "nvidia-35", 0) for card in (ONE, TWO)]
        before = {"resources1:VGPU": "1", "resources2:VGPU": "1", "trait2:CUSTOM_BIG": "required"}
        taken = {"vgpus": "= 2", "vgpu_type": "s== nvidia-35"}
        record = former.Former("g1", taken, before, {}, {})
        own = instance(uuid=MINE, slots=frozenset(slots), extra_specs=taken, former=record)
        domain = Domain(frozenset(), frozenset(device_uuid(MINE, slot) for slot in slots))
        item = judge(own, {MINE: domain}, HOST, (), [MdevType("nvidia-35", "VGPU")])
        self.assertEqual((before, (*taken,)), (item.set, item.unset))
        (remark,) = item.remarks
        self.assertIn("trait2:CUSTOM_BIG again", remark)
        item = judge(own, {MINE: domain}, HOST, (), [MdevType("nvidia-35", "CUSTOM_Q")])
        self.assertEqual({"resources:CUSTOM_Q": "2"}, item.set)
        self.assertIn("do not fit", item.remarks[0])

    def test_the_way_back_before_the_way_there(self) -> None:
        alias = {"pci_passthrough:alias": "a2:1"}
        stock = StockInstance("mine", "g1", alias, "active", recorded={ONE: "a2"})
        holding = StockHolding(
            *(stock, (StockDelivery.ALIAS,), (ONE,), {}, frozenset([ONE]), frozenset(["a2"])),
            *({"gpus": "= 1"}, (*alias,), ()),
        )
        domains = {"mine": Domain(frozenset([ONE]))}
        self.assertEqual((), leave_plan.back(holding, domains, HOST, [A2], (), ()))
        (obstacle,) = leave_plan.back(holding, domains, HOST, [L4], (), ())
        self.assertIn("no [pci]alias of this host gives", obstacle.reason)

    def test_no_alias_and_several(self) -> None:
        self.assertObstacle(self.judge(instance(ONE), L4), "no [pci]alias", "add one")
        other = Alias("any", (*A2.cards, *L4.cards), {})
        item = self.judge(instance(ONE), A2, other)
        self.assertObstacle(item, f"several aliases give {ONE}: a2, any", "--alias")
        self.assertEqual(({ONE: None}, {}), (item.functions, item.set))
        domains = {"mine": Domain(frozenset([ONE]))}
        item = judge(instance(ONE), domains, HOST, [A2, other], preferred=["any", "l4"])
        self.assertEqual(((), {ONE: "any"}), (item.obstacles, item.functions))

    def test_other_functions_of_a_card(self) -> None:
        """Each comes by its own alias, if the guest has it and stock Nova would give it away."""
        sounds = [dataclasses.replace(card, function=1) for card in (ONE, TWO)]
        cards = {ONE: ONE, TWO: TWO, sounds[0]: ONE, sounds[1]: TWO}
        host = dataclasses.replace(HOST, cards_by_function=cards)
        alias = Alias("sound", (), {}, (*sounds,))
        own, specs = instance(ONE, TWO), {"pci_passthrough:alias": "a2:2,sound:2"}
        every = {ONE: "a2", TWO: "a2", **dict.fromkeys(sounds, "sound")}
        has, only = [ONE, TWO, *sounds], {ONE: "a2", TWO: "a2", sounds[0]: "sound"}
        for what, domain, known, functions in (
            (own, has, [A2, alias], every),
            (own, has[:3], [A2, alias], only),
            (own, has, [A2], {ONE: "a2", TWO: "a2"}),
            # A takeover that has begun has left Nova's record.
            (dataclasses.replace(own, recorded={sounds[0]: None}), has, [A2, alias], every),
            (dataclasses.replace(own, recorded={sounds[0]: "x"}), has[:3], [A2, alias], None),
        ):
            with self.subTest(domain=domain, recorded=what.recorded, known=known):
                item = judge(what, {"mine": Domain(frozenset(domain))}, host, known)
                self.assertEqual((), item.obstacles)
                self.assertEqual(functions or {ONE: "a2", TWO: "a2"}, item.functions)
                if functions is every:
                    self.assertEqual(specs, item.set)
                self.assertEqual(tuple(sounds) if known == [A2] else (), item.losses)
        left = dataclasses.replace(own, recorded={sounds[0]: None})
        item = judge(left, {"mine": Domain(frozenset(has))}, host, [A2])
        self.assertObstacle(item, f"no [pci]alias of this host gives {sounds[0]}, by")
