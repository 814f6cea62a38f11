# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import json
import pathlib
from collections.abc import Iterable, Iterator
from unittest import mock

import fixtures
from nova import test

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.host.pci import sysfs
from nova_gpu.stock.cmd import adopt, leave
from nova_gpu.stock.core.holding import Instance, Leaving, Obstacle
from nova_gpu.stock.virt.adoption import Step
from nova_gpu.stock.virt.shadow import Card, Shadow
from tests.fixtures import hosts, pci

CARD = PciAddress(0, 0x3B, 0, 0)
A2 = json.dumps({"vendor_id": "10de", "product_id": "25b6"})
BUSY = Obstacle("it has the task deleting", "wait")


def leaving(uuid: str, *obstacles: Obstacle) -> Leaving:
    own = Instance(uuid, "g1", {}, "active", counted=frozenset([CARD]))
    words = {"pci_passthrough:alias": "a2:1"}
    return Leaving(own, {CARD: "a2"}, {}, words, ("gpus",), obstacles)


class TextTest(test.NoDBTestCase):
    def test_text(self) -> None:
        self.assertEqual(
            [
                "one: to be given back, with 0000:3b:00.0",
                "    flavor of the instance: pci_passthrough:alias='a2:1', without gpus",
                "two: cannot be given back",
                "  - it has the task deleting; wait",
            ],
            leave.text([leaving("one"), leaving("two", BUSY)]).splitlines(),
        )
        self.assertIn("nothing is to be given back", leave.text([]))


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

    def test_what_is_ready(self) -> None:
        leave.check([leaving("one")], [A2], self.host.roots)

    def test_what_is_not(self) -> None:
        self.assertRefused("no [pci]device_spec matches 0000:3b:00.0")
        self.assertRefused("cannot be given back", A2, obstacles=[BUSY])
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.assertRefused("set it to libvirt.LibvirtDriver", A2)

    def test_a_card_that_nova_gpu_withholds(self) -> None:
        gpu = GPU(CARD, Product("10de", "25b6"), 0)
        withheld, fit = Card(gpu, "it is in quarantine", (), ()), Card(gpu, None, (), ())
        (line,) = leave.unfit([withheld, fit], [A2], self.host.roots)
        self.assertIn("0000:3b:00.0: stock Nova gives it", line)
        self.assertIn("it is in quarantine", line)
        self.assertEqual([], list(leave.unfit([withheld], [], self.host.roots)))

    def test_one_in_quarantine_that_is_not_clean(self) -> None:
        """Its quarantine ends first: it is not cleaned before."""
        host = mock.Mock(proofs=self.host.root / "gpu-clean", roots=self.host.roots)
        card = Card(GPU(CARD, Product("10de", "25b6"), 0), "it is in quarantine", (), (), "bound")
        refused = self.assertRaises(adopt.NotReady, leave.check_clean, [card], [A2], host)
        self.assertIn("it is in quarantine; then start nova-compute", str(refused))

    def test_a_domain_that_is_no_instance(self) -> None:
        """Its card is not free, and no other function of that."""
        self.host.add_gpu("0000:5e:00.0", "10de", "25b6", companions=[pci.AUDIO])
        gpu = next(gpu for gpu in self.host.gpus() if gpu.companions)
        card = Card(gpu, None, ("strange",), (), named=frozenset(gpu.functions))
        strangers = {"strange": (gpu.address,)}
        report = Shadow(None, (), (card,), (), (), (), strangers, ())
        other = json.dumps({"vendor_id": "10de", "product_id": "25b7"})
        leave.check_strangers(report, [other], self.host.roots)
        product = sysfs.ids(sysfs.device(gpu.companions[0], self.host.roots))[1]
        sound = json.dumps({"vendor_id": "10de", "product_id": product})
        for spec in (A2, sound):
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

    def steps(self, items: Iterable[Leaving]) -> Iterator[Step]:
        for item in items:
            yield Step(item.instance.uuid, lambda: self.done.append("first"))
            yield Step("second", self._second)

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
