# SPDX-License-Identifier: Apache-2.0
"""Instances with cards of nova-gpu are given back to stock Nova as they run."""

from __future__ import annotations

from nova import objects

from nova_gpu_migrate.cmd import adopt, leave
from nova_gpu_migrate.core import former
from nova_gpu_migrate.core.stock_holding import Stranger
from nova_gpu_migrate.virt import adoption, shadow
from tests.functional import aliases, kvm, stock
from tests.functional.base import Server


class Leaving(stock.Adopting):
    """The hosts have nova-gpu's driver first."""

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=stock.OURS)

    def go_back(self) -> None:
        """Stop nova-compute of host1, and make its options stock Nova's."""
        self.computes["host1"].stop()
        self.device_spec(aliases.ALL_A2)

    def finish_leaving(self) -> None:
        self.assertEqual(0, self.leave())
        self.take_driver(stock.STOCK)
        self.period()

    def assertLeft(self, server: Server, cards: list[str]) -> None:
        """Check that stock Nova counts *cards*, and that nothing of nova-gpu is left."""
        self.assertEqual(cards, self.rows(server))
        self.assertIsNone(self.instance(server).resources)  # as of an instance that never had any
        self.assertEqual({}, self.allocated(server))
        self.assertEqual({}, self.groups())
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor", "pci_requests"]
        )
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        for record in (instance, spec):
            self.assertEqual(
                {"pci_passthrough:alias": f"a2:{len(cards)}"}, record.flavor.extra_specs
            )
            (request,) = record.pci_requests.requests
            self.assertEqual(("a2", None), (request.alias_name, request.requester_id))


class LeaveTest(Leaving):
    def test_there_and_back(self) -> None:
        server = self.boot(self.flavor(**{"gpus": "= 1", "gpu:model": "s== a2_a16"}))
        had = self.recorded(server)
        self.assertNotEqual([], self.proofs())
        # A way back that was killed has given it its flavor.
        self.flags(shelved_offload_time=0)
        shelved = self.boot(self.flavor())
        self._shelve_server(shelved, expected_state="SHELVED_OFFLOADED")
        words = {"gpus": "= 1"}
        adoption.keep(self.instance(shelved), former.Former("", words, {}, {}, {}))
        self.go_back()
        self.finish_leaving()
        self.assertLeft(server, had)
        self.assertIsNone(former.of_metadata(self.instance(shelved).system_metadata))
        self._delete_server(shelved)
        self.assertEqual([], self.proofs())  # a guest of stock Nova's may have any card now
        self.change_driver()
        self.assertEqual(0, self.adopt())
        # The guest starts anew before nova-compute has asked Placement for its providers.
        self.lose_power()
        self.take_driver()
        self.period()
        self.assertAdopted(server, had)
        self.assertGPUs(server, had)

    def test_a_free_card_that_is_not_clean(self) -> None:
        """Stock Nova would give it as its last guest has left it."""
        server = self.boot(self.gpu_flavor(1))
        (card,) = self.recorded(server)
        free = next(address for address in kvm.ALL if address != card)
        self.go_back()
        for proof in (self.state() / "gpu-clean").glob(f"{free}*"):
            proof.unlink()
        with self.reading("host1") as sources:
            cards = shadow.look(sources).cards
            refused = self.assertRaises(
                adopt.NotReady, leave.check_clean, cards, [aliases.ALL_A2], sources.discovery
            )
        self.assertIn(f"{free}: it was not cleaned", str(refused))
        self.assertEqual(0, leave.give_back(self.giving_back(), self.look().leavings))
        self.take_driver(stock.STOCK)

    def test_a_resize_that_may_be_reverted(self) -> None:
        """Its card waits for it here, and neither its flavor nor its own records tell so."""
        server = self.boot(self.gpu_flavor(1))
        had = self.recorded(server)
        self.start_host("host2")
        self._resize_server(server, self.flavor())
        self.go_back()
        report = self.look()
        self.assertEqual(1, len(report.consumers))
        (leaving,) = report.leavings
        self.assertEqual("a migration of it is finished", leaving.obstacles[0].reason)
        self.assertRaises(Stranger, self.leave)
        self.device_spec()
        self.take_driver()
        self._revert_resize(server)
        self.assertGPUs(server, had)

    def test_a_guest_of_stock_nova_between(self) -> None:
        """The way back ended before it had removed the proofs, and no command came after it."""
        self.go_back()
        self.assertEqual(0, leave.give_back(self.giving_back(), ()))
        self.take_driver(stock.STOCK)
        server = self.boot_by_alias()
        (had,) = self.has(server)
        self._delete_server(server)
        self.computes["host1"].stop()
        self.device_spec()
        proof = self.state() / "gpu-clean" / f"{had}.json"
        before = proof.stat().st_mtime_ns
        self.take_driver()
        cleaned = proof.stat().st_mtime_ns
        self.assertNotEqual(before, cleaned)
        self.take_driver()  # before it was nova-gpu's
        self.assertEqual(cleaned, proof.stat().st_mtime_ns)

    def test_an_instance_that_waits_to_be_built(self) -> None:
        """Placement counts its GPU, and stock Nova would build it with none."""
        server, waits = self.boot(self.gpu_flavor(1)), self.boot(self.gpu_flavor(1))
        had = {guest["id"]: self.recorded(guest) for guest in (server, waits)}
        self.go_back()
        instance = self.instance(waits)
        instance.host = None
        instance.save()
        self.assertIn(waits["id"], leave.text((), self.look().consumers))
        self.assertEqual(1, leave.give_back(self.giving_back(), self.look().leavings))
        self.assertEqual({"host1": 1}, self.allocated(waits))
        instance.host = "host1"
        instance.save()
        self.finish_leaving()
        for guest in (server, waits):
            self.assertLeft(guest, had[guest["id"]])
