# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import time
from collections.abc import Iterable, Iterator, Sequence
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import objects, test

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import sysfs
from nova_gpu_migrate.cmd import adopt, leave
from nova_gpu_migrate.core.stock_holding import (
    NotTakenOver,
    Obstacle,
    StockDelivery,
    StockHolding,
    StockInstance,
    StockReturn,
)
from nova_gpu_migrate.virt.adoption import Write
from nova_gpu_migrate.virt.shadow import Shadow, ShadowCard, ShadowGroup
from tests.fixtures import hosts, pci

CARD = PciAddress(0, 0x3B, 0, 0)
NIC = PciAddress(0, 5, 0, 0)
A2 = {"vendor_id": "10de", "product_id": "25b6"}
BUSY = Obstacle("it has the task deleting", "wait")


def holding(uuid: str, *obstacles: Obstacle) -> StockHolding:
    return StockHolding(
        StockInstance(uuid, "a2.small", {}, "active", recorded={CARD: "a2"}),
        (StockDelivery.ALIAS,),
        (CARD,),
        {},
        frozenset([CARD]),
        frozenset(["a2"]),
        {"gpus": "= 1"},
        ("pci_passthrough:alias",),
        obstacles,
    )


def report(*holdings: StockHolding, cards: tuple[ShadowCard, ...] = ()) -> Shadow:
    return Shadow("node1", (), cards, (), holdings, (), {}, ())


class LeaveContainersTest(test.NoDBTestCase):
    def test_one_sentence_for_all(self) -> None:
        self.flags(virt_type="lxc", group="libvirt")
        shadow_report = dataclasses.replace(
            report(), leavings=(leaving("one", BUSY), leaving("two"))
        )
        output = io.StringIO()
        read = mock.patch.object(leave.shadow_command, "read", return_value=(None, shadow_report))
        with read, contextlib.redirect_stdout(output):
            self.assertEqual(1, leave.run(mock.Mock(aliases=()), []))
        self.assertRegex(
            output.getvalue(), "^This host's instances are containers, .*: one, two\n$"
        )


class PlanTest(test.NoDBTestCase):
    def test_of_all_and_of_some(self) -> None:
        one, two = holding("one"), holding("two")
        self.assertEqual([one, two], adopt.chosen([one, two], []))
        self.assertEqual([two], adopt.chosen([one, two], ["two"]))
        refused = self.assertRaises(adopt.NotReady, adopt.chosen, [one], ["two"])
        self.assertIn("the instance two has no GPU by stock Nova", str(refused))

    def test_text(self) -> None:
        remarks = {"remarks": ("the next start adds a function",), "back": (BUSY,)}
        one = dataclasses.replace(holding("one"), **remarks)  # type: ignore[arg-type]
        text = adopt.text([one, holding("two", BUSY)])
        self.assertEqual(
            [
                "one: to be taken over, with 0000:3b:00.0",
                "    flavor of the instance: gpus='= 1', without pci_passthrough:alias",
                "    the next start adds a function",
                "    nova-gpu leave could not give it back by the present options: it has the task "
                "deleting; wait",
                "two: stays stock Nova's",
                "  - it has the task deleting; wait",
            ],
            text.splitlines(),
        )
        self.assertIn("nothing is to be taken over", adopt.text([]))

    def test_what_has_changed_meanwhile(self) -> None:
        before = report(holding("one"))
        adopt.check_unchanged(before, report(holding("one")))
        for now in (report(), report(holding("one", BUSY)), report(holding("one"), holding("two"))):
            refused = self.assertRaises(adopt.NotReady, adopt.check_unchanged, before, now)
            self.assertIn("(holdings); run this again", str(refused))

    def test_a_card_that_no_domain_has(self) -> None:
        """As the former one of a resize on the same host, which may be reverted."""
        gpu = GPU(CARD, Product("10de", "25b6"), 0)
        own, free = ShadowCard(gpu, None, ("one",), ()), ShadowCard(gpu, None, (), ())
        own_holding = holding("one", Obstacle("a migration of it is finished", "wait"))
        adopt.check_named(report(own_holding, cards=(own,)))
        adopt.check_named(report(cards=(free,)))
        refused = self.assertRaises(
            adopt.NotReady, adopt.check_named, report(own_holding, cards=(free,))
        )
        for part in (str(CARD), "the instance one", "a migration of it is finished; wait"):
            self.assertIn(part, str(refused))
        counted = dataclasses.replace(own_holding.instance, counted=frozenset([CARD]))
        counted_holding = dataclasses.replace(own_holding, instance=counted)
        adopt.check_named(report(counted_holding, cards=(free,)))

    def test_a_scheduler_without_nova_gpu(self) -> None:
        """It would move the instance without its GPUs."""
        command = mock.Mock(instances=[], apply=True, shelved=False, with_gpufilter=False)
        reading = mock.Mock(), report(holding("one"))
        with (
            mock.patch.object(adopt.shadow_command, "read", return_value=reading),
            mock.patch.object(adopt.records, "shelved", return_value=[]),
            mock.patch.object(adopt, "check_options", side_effect=StopIteration),
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            refused = self.assertRaises(adopt.NotReady, adopt.run, command, [])
            self.assertIn("--with-gpufilter", str(refused))
            self.assertIn("enable GPUFilter", out.getvalue())
            self.flags(enabled_filters=["GPUFilter"], group="filter_scheduler")
            self.assertRaises(StopIteration, adopt.run, command, [])

    def test_a_card_that_placement_counts_for_one_without_it(self) -> None:
        own = holding("one")
        seen = dataclasses.replace(report(own), misplaced={CARD: frozenset({"a move", "one"})})
        self.assertIn(f"Placement counts {CARD} for a move, and", str(adopt.misplaced(seen, [own])))
        seen = dataclasses.replace(seen, misplaced={CARD: frozenset({"one"})})
        self.assertIsNone(adopt.misplaced(seen, [own]))  # the takeover changes what is counted
        stays = dataclasses.replace(own, obstacles=(Obstacle("it is resized", "wait"),))
        self.assertIn("for one, and", str(adopt.misplaced(seen, [stays])))

    def test_types_that_flavors_did_not_get(self) -> None:
        """By resources:VGPU stock Nova gave one type, and nova-gpu would give any."""
        # oslo.config keeps the location of what an earlier test has set, and taken back.
        CONF._get_opt_info("vgpu_types", "gpu").pop("location", None)
        product, slot = Product("10de", "27b8"), Slot(CARD, "nvidia-64", 0)
        groups = tuple(
            ShadowGroup(type_id, "VGPU", product, 4, (card,), type_id)
            for type_id, card in (("nvidia-64", CARD), ("nvidia-66", CARD), ("nvidia-9", NIC))
        )
        own = dataclasses.replace(holding("one"), slots={slot: CARD}, unset=("resources1:VGPU",))
        own_report = dataclasses.replace(report(own), groups=groups)
        mismatch = adopt.other_types(own_report, [own])
        self.assertIn("nvidia-64, nvidia-66; set [gpu]vgpu_types = nvidia-64,", str(mismatch))
        other = dataclasses.replace(own_report, groups=groups[1:])
        self.assertIn("set [gpu]vgpu_types = nvidia-64,", str(adopt.other_types(other, [own])))
        # No instance has any yet.
        empty = dataclasses.replace(report(), groups=groups, divided=frozenset({CARD}))
        self.assertIn("set [gpu]vgpu_types to what", str(adopt.other_types(empty, [])))
        for item, seen in (
            (own, dataclasses.replace(own_report, groups=groups[:1])),
            (own, dataclasses.replace(empty, groups=groups[:1])),
            (dataclasses.replace(own, unset=("resources:CUSTOM_Q",)), own_report),
        ):
            self.assertIsNone(adopt.other_types(seen, [item]))
        self.flags(vgpu_types=["*"], group="gpu")  # as the operator wants it
        self.assertIsNone(adopt.other_types(own_report, [own]))

    def test_two_runs_at_once(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        host = mock.Mock(proofs=folder / "gpu-clean")
        with adopt.alone(host):
            refused = self.assertRaises(adopt.NotReady, adopt.alone(host).__enter__)
        self.assertIn("another nova-gpu adopt or leave runs", str(refused))
        with adopt.alone(host):
            pass


class TakeOverTest(test.NoDBTestCase):
    """The steps of each instance are taken in their order, those of others all the same."""

    def setUp(self) -> None:
        super().setUp()
        self.done: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.given_back: list[str] = []

    def steps(self, taken: StockHolding) -> Iterator[Write]:
        for name in ("first", "second"):
            yield Write(name, functools.partial(self._do, taken.instance.uuid, name))

    def begun(self) -> Iterator[Iterator[Write]]:
        for uuid in self.given_back:
            yield iter([Write("back", functools.partial(self._do, uuid, "back"))])

    def ended(self) -> Iterator[Write]:
        yield from ()

    def _do(self, uuid: str, name: str) -> None:
        if error := self.errors.get(uuid):
            raise error
        self.done.append(f"{uuid} {name}")

    def take_over(self, *holdings: StockHolding) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = adopt.take_over(self, holdings)  # type: ignore[arg-type]
        return status, out.getvalue(), err.getvalue()

    def test_what_was_begun_the_other_way(self) -> None:
        self.given_back = ["one", "two"]
        self.errors = {"one": NotTakenOver("one", "it is busy", "wait")}
        status, *_ = self.take_over(holding("three"))
        self.assertEqual(1, status)
        self.assertEqual(["two back", "three first", "three second"], self.done)

    def test_what_fails(self) -> None:
        for error, text in (
            (NotTakenOver("one", "it was deleted", "nothing is to be done"), None),
            (exception.PlacementFailed("/reshaper", "500", verb="POST"), None),
            (
                TimeoutError("no answer\nof the conductor"),
                "not done: first: no answer; run this again",
            ),
        ):
            self.done, self.errors = [], {"one": error}
            status, _, errors = self.take_over(holding("one"), holding("two"))
            self.assertEqual((1, f"nova-gpu: {text or error}\n"), (status, errors))
            self.assertEqual(["two first", "two second"], self.done)

    def test_a_bus_that_never_answers(self) -> None:
        """The deadline may fall into a log message, after which the call goes on."""
        self.useFixture(fixtures.MonkeyPatch("nova_gpu_migrate.cmd.adopt._STEP_S", 1))

        def wait() -> None:
            with contextlib.suppress(Exception):
                time.sleep(10)
            time.sleep(10)

        step = Write("a step", wait)
        refused = self.assertRaises(adopt.NotReady, adopt.do, step)
        self.assertEqual("not done: a step: no answer within 1 s; run this again", str(refused))


class OptionsTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(root)
        self.host.add_gpu(str(CARD), "10de", "25b6")
        self.flags(compute_driver="gpu.GPULibvirtDriver")

    def refused(
        self, *parts: str, item: StockHolding | None = None, spec: Sequence[str] = ()
    ) -> None:
        refused = self.assertRaises(
            adopt.NotReady, adopt.check_options, [item or holding("one")], spec, self.host.roots
        )
        for part in parts:
            self.assertIn(part, str(refused))

    def test_what_does_not_matter(self) -> None:
        """The device of one that stays, and the network function of one that does not"""
        adopt.check_options([holding("one", BUSY)], [json.dumps(A2)], self.host.roots)
        self.host.add_device("0000:05:00.0", "8086", "1533", class_code=0x020000)
        own = dataclasses.replace(holding("one").instance, recorded={CARD: "a2", NIC: "nic"})
        nic = json.dumps({"vendor_id": "8086", "product_id": "1533"})
        item = dataclasses.replace(holding("one"), instance=own)
        adopt.check_options([item], [nic], self.host.roots)

    def test_what_is_still_stock_novas(self) -> None:
        self.refused("[pci]device_spec", str(CARD), spec=[json.dumps(A2)])
        slot = Slot(CARD, "nvidia-35", 0)
        item = dataclasses.replace(holding("one"), slots={slot: CARD}, functions=frozenset())
        adopt.check_options([item], [], self.host.roots)
        self.flags(enabled_mdev_types=["nvidia-35"], group="devices")
        self.refused("[devices]enabled_mdev_types names nvidia-35", item=item)
        for driver in ("libvirt.LibvirtDriver", "gpu.SomeDriver", "", None):
            self.flags(compute_driver=driver)
            self.refused("set it to gpu.GPULibvirtDriver")


class StoppedTest(test.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(host="host1")
        self.context = nova_context.get_admin_context()
        values = {"host": "host1", "binary": "nova-compute", "topic": "compute", "report_count": 0}
        self.service = objects.Service(self.context, **values)
        self.service.create()

    def report(self, seconds: float = 1) -> int:
        """Report as nova-compute does, if some time has passed"""
        if seconds:
            self.service.report_count += 1
            self.service.save()
        return 0

    def test_one_that_runs(self) -> None:
        for forced_down in (False, True):
            self.service.forced_down = forced_down
            self.report()
            refused = self.assertRaises(
                adopt.NotReady, adopt.check_stopped, self.context, self.report
            )
            self.assertIn("systemctl stop nova-compute", str(refused))

    def test_one_that_starts_too_early(self) -> None:
        self.report()
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(0, adopt.watched(self.context, lambda: 0))
            self.assertEqual("", errors.getvalue())
            self.assertEqual(1, adopt.watched(self.context, self.report))
        self.assertIn("stop it, run this again, and start it", errors.getvalue())


OF_A2 = json.dumps({"vendor_id": "10de", "product_id": "25b6"})


def leaving(uuid: str, *obstacles: Obstacle) -> StockReturn:
    own = StockInstance(uuid, "g1", {}, "active", counted=frozenset([CARD]))
    words = {"pci_passthrough:alias": "a2:1"}
    return StockReturn(own, {CARD: "a2"}, {}, words, ("gpus",), obstacles)


class CheckTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(root)
        self.host.add_gpu(str(CARD), "10de", "25b6")
        self.flags(compute_driver="libvirt.LibvirtDriver")

    def assertRefused(self, part: str, *spec: str, obstacles: Iterable[Obstacle] = ()) -> None:
        own = [leaving("one", *obstacles)]
        refused = self.assertRaises(adopt.NotReady, leave.check, own, spec, self.host.roots)
        self.assertIn(part, str(refused))

    def test_what_is_ready_and_what_is_not(self) -> None:
        leave.check([leaving("one")], [OF_A2], self.host.roots)
        self.assertRefused("no [pci]device_spec matches 0000:3b:00.0")
        self.assertRefused("cannot be given back", OF_A2, obstacles=[BUSY])
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.assertRefused("set it to libvirt.LibvirtDriver", OF_A2)

    def test_a_card_that_nova_gpu_withholds(self) -> None:
        gpu = GPU(CARD, Product("10de", "25b6"), 0)
        withheld, fit = (
            ShadowCard(gpu, "it is in quarantine", (), ()),
            ShadowCard(gpu, None, (), ()),
        )
        (line,) = leave.unfit([withheld, fit], [OF_A2], self.host.roots)
        self.assertIn("0000:3b:00.0: stock Nova gives it", line)
        self.assertIn("it is in quarantine", line)
        self.assertEqual([], list(leave.unfit([withheld], [], self.host.roots)))

    def test_one_in_quarantine_that_is_not_clean(self) -> None:
        """Its quarantine ends first: it is not cleaned before."""
        host = mock.Mock(proofs=self.host.root / "gpu-clean", roots=self.host.roots)
        card = ShadowCard(
            GPU(CARD, Product("10de", "25b6"), 0), "it is in quarantine", (), (), "bound"
        )
        refused = self.assertRaises(adopt.NotReady, leave.check_clean, [card], [OF_A2], host)
        self.assertIn("it is in quarantine; then start nova-compute", str(refused))

    def test_a_domain_that_is_no_instance(self) -> None:
        """Its card is not free, and no other function of that."""
        self.host.add_gpu("0000:5e:00.0", "10de", "25b6", companions=[pci.AUDIO])
        gpu = next(gpu for gpu in self.host.gpus() if gpu.companions)
        card = ShadowCard(gpu, None, ("strange",), (), named=frozenset(gpu.functions))
        strangers = {"strange": (gpu.address,)}
        report = Shadow(None, (), (card,), (), (), (), strangers, ())
        other = json.dumps({"vendor_id": "10de", "product_id": "25b7"})
        leave.check_strangers(report, [other], self.host.roots)
        product = sysfs.ids(sysfs.device(gpu.companions[0], self.host.roots))[1]
        sound = json.dumps({"vendor_id": "10de", "product_id": product})
        for spec in (OF_A2, sound):
            refused = self.assertRaises(
                adopt.NotReady, leave.check_strangers, report, [spec], self.host.roots
            )
            self.assertIn("strange", str(refused))
            self.assertIn(str(gpu.address), str(refused))


class GiveBackTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.done: list[str] = []
        self.error: exception.GPUError | None = None

    def steps(self, items: Iterable[StockReturn]) -> Iterator[Write]:
        for item in items:
            yield Write(item.instance.uuid, lambda: self.done.append("first"))
            yield Write("second", self._second)

    def _second(self) -> None:
        if self.error:
            raise self.error
        self.done.append("second")

    def give_back(self) -> tuple[int, str]:
        err = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            status = leave.give_back(self, [leaving("one"), leaving("two")])  # type: ignore[arg-type]
        return status, err.getvalue()

    def test_what_fails_ends_it(self) -> None:
        self.error = exception.PlacementFailed("/reshaper", "500", verb="POST")
        self.assertEqual((1, f"nova-gpu: {self.error}\n"), self.give_back())
        self.assertEqual(["first"], self.done)
