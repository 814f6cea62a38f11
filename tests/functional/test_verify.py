# SPDX-License-Identifier: Apache-2.0
"""Each difference made for real, named by ``nova-gpu verify``, and repaired or refused."""

from __future__ import annotations

import dataclasses
import io
import uuid
from typing import Any
from unittest import mock

import fixtures
from nova.cmd import manage

from nova_gpu.cmd import verify as command
from nova_gpu.core import exception
from nova_gpu.virt.verify import contradictions, gather, repair
from nova_gpu.virt.verify.sources import Kind
from tests.functional import alone, base, divided, profiled
from tests.functional.test_strangers import _DOMAIN as FOREIGN


class Verifying(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.driver = self.computes["host1"].driver

    def assertFound(self, *expected: tuple[Kind, str]) -> None:
        verdict = self.judge()
        found = [(each.kind, each.subject) for each in verdict.differences]
        self.assertEqual(sorted(expected), sorted(found), command.text(verdict))
        self.assertEqual((), verdict.unread)
        self.assertEqual(1 if expected else 0, verdict.status)

    def assertRepaired(self) -> None:
        verdict = self.judge(mend=True)
        self.assertEqual([None], list(verdict.repaired.values()), command.text(verdict))
        self.assertEqual(0, verdict.status)
        self.assertFound()

    def allocation_to_write(self, server: base.Server) -> dict[str, Any]:
        """Return the server's allocation as a new consumer's."""
        payload: dict[str, Any] = self.placement.get(
            f"/allocations/{server['id']}", version="1.28"
        ).body
        payload["consumer_generation"] = None
        for allocation in payload["allocations"].values():
            allocation.pop("generation")
        return payload


class AllocationsTest(alone.Alone, Verifying):
    def test_nothing_to_say(self) -> None:
        self.assertFound()
        server = self.boot(self.gpu_flavor(2))
        plain = self.boot(self.flavor())
        self.assertFound()
        self._stop_server(server)
        self.assertFound()
        gives = self.boot(self.flavor(**{"gpus": "= 2", "gpu:on_stop": "release"}))
        self._stop_server(gives)
        self.assertFound()
        self._delete_server(server)
        self._delete_server(plain)
        self.assertFound()

    def test_allocations_that_are_gone(self) -> None:
        for flavor in (self.gpu_flavor(2), self.flavor(**{"resources:PGPU": "2"})):
            server = self.boot(flavor)
            before = self.allocations(server)
            self.placement.delete(f"/allocations/{server['id']}")
            self.assertFound((Kind.ALLOCATION_DIFFERS, server["id"]))
            self.assertRepaired()
            self.assertEqual(before, self.allocations(server))
            self.assertGPUs(server, self.recorded(server))

    def test_an_instance_that_has_changed_since_is_left(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        self.placement.delete(f"/allocations/{server['id']}")
        with self.on("host1"):
            truths = gather.gather(self.sources())
        (difference,) = (each for each in contradictions.compare(truths) if each.safe)
        instance = self.instance(server)
        instance.task_state = "rebooting_hard"
        instance.save()
        placement = self.sources().placement
        self.assertRaises(exception.NotRepaired, repair.repair, difference, truths, placement)
        self.assertEqual({}, self.allocations(server))
        self.assertFound()  # nor is it compared

    def test_an_allocation_of_a_server_that_is_deleted(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        payload = self.allocation_to_write(server)
        self._delete_server(server)
        self.placement.put(f"/allocations/{server['id']}", payload, version="1.28")
        self.assertFound((Kind.ALLOCATION_LEFT, server["id"]))
        self.assertRepaired()
        self.assertInventory()

    def test_an_allocation_of_nobody_is_left(self) -> None:
        consumer = str(uuid.uuid4())
        (group,) = self.groups().values()
        payload = {
            "allocations": {group: {"resources": {"PGPU": 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
        }
        self.placement.put(f"/allocations/{consumer}", payload, version="1.28")
        self.leaves = {"allocation": "nobody knows whose it is"}
        self.assertFound((Kind.ALLOCATION_UNKNOWN, consumer))
        verdict = self.judge(mend=True)
        self.assertEqual(({}, 1), (verdict.repaired, verdict.status))
        self.assertInventory(used=1)

    def test_an_inventory_that_says_too_much(self) -> None:
        (group,) = self.groups().values()
        url = f"/resource_providers/{group}/inventories/PGPU"
        body = self.placement.get(url).body
        self.placement.put(url, {**body, "total": 12, "max_unit": 12})
        self.assertFound((Kind.INVENTORY_EXCEEDS, self._group()))

    def _group(self) -> str:
        (group,) = self.groups().values()
        return str(self.placement.get(f"/resource_providers/{group}").body["name"])


class HealedTest(Verifying):
    def test_allocations_that_were_healed_without_gpus(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        before = self.allocations(server)
        self.placement.delete(f"/allocations/{server['id']}")
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", io.StringIO()))
        healed = manage.PlacementCommands().heal_allocations(
            instance_uuid=server["id"], skip_port_allocations=True
        )
        self.assertEqual(0, healed)
        self.assertEqual({}, self.allocated(server))
        self.assertNotEqual({}, self.allocations(server))
        self.assertFound((Kind.ALLOCATION_DIFFERS, server["id"]))
        self.assertRepaired()
        self.assertEqual(before, self.allocations(server))


class GuestsTest(alone.Alone, Verifying):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.gpu_flavor(1))
        (self.card,) = self.recorded(self.server)
        self.uuid = self.server["id"]

    def test_a_foreign_domain(self) -> None:
        other = str(uuid.uuid4())
        xml = FOREIGN.format(uuid=other).replace("/dev/nvidia4", "/dev/nvidia6")
        self.connection().defineXML(xml)
        self.leaves = dict.fromkeys(("domain", "hold", "reserved"), "it is not Nova's to end")
        self.period()
        self.assertFound((Kind.FOREIGN_DOMAIN, other))

    def test_a_domain_without_its_card(self) -> None:
        self.leaves = {"hold": "nobody can clean the card that it names instead"}
        domain = self.guest(self.server)
        domain._xml = domain.XMLDesc(0).replace(self.card, "0000:ff:00.0")
        self.assertFound((Kind.DOMAIN_DIFFERS, self.uuid))
        self._reboot_server(self.server, hard=True)
        self.assertFound()

    def test_an_instance_without_its_domain(self) -> None:
        domain = self.guest(self.server)
        domain.destroy()
        domain.undefine()
        self.assertFound((Kind.NO_DOMAIN, self.uuid))
        self._reboot_server(self.server, hard=True)
        self.assertFound()

    def test_a_card_with_another_driver(self) -> None:
        self.leaves = {"reserved": "it stays with that driver"}
        self.hosts["host1"].bind(self.card, "vfio-pci")
        self.assertFound((Kind.CARD_UNFIT, self.card))

    def test_a_card_that_is_gone(self) -> None:
        self.leaves = {"reserved": "it stays away"}
        self.hosts["host1"].remove(self.card)
        self.assertFound((Kind.CARD_MISSING, self.card))


class AtStartTest(alone.Alone, Verifying):
    def test_it_is_said_once_and_the_service_runs(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        url = f"/allocations/{server['id']}"
        allocation = self.placement.get(url, version="1.28").body
        (group,) = self.groups().values()
        # One too many, of which no period is sure that nothing has it
        allocation["allocations"][group]["resources"]["PGPU"] = 2
        self.placement.put(url, allocation, version="1.28")
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.verify.startup_check"))
        self.restart_host("host1")
        self.period()
        self.assertNotIn(str(Kind.ALLOCATION_DIFFERS), log.output)
        for _ in range(3):
            self.period()
        self.assertEqual(1, log.output.count(str(Kind.ALLOCATION_DIFFERS)), log.output)
        self.assertIn("nova-gpu verify --repair", log.output)
        self.assertEqual(2, len(self.recorded(self.boot(self.gpu_flavor(2)))))

    def test_what_is_missing_is_written_again(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        before = self.allocations(server)
        self.placement.delete(f"/allocations/{server['id']}")
        self.restart_host("host1")
        self.period()
        self.assertEqual(before, self.allocations(server))

    def test_nothing_is_said_where_they_agree(self) -> None:
        self.boot(self.gpu_flavor(1))
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.verify.startup_check"))
        self.restart_host("host1")
        for _ in range(3):
            self.period()
        self.assertEqual("", log.output)


class Unanswering:
    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("nobody is there")


class NotAnsweringTest(alone.Alone, Verifying):
    def test_placement(self) -> None:
        self.boot(self.gpu_flavor(1))
        sources = self.sources()
        silent = dataclasses.replace(sources, placement=Unanswering())
        with self.on("host1"):
            verdict = command.judge(silent, mend=False)
        self.assertEqual(
            ("Placement: nobody is there; see the options of [placement]",), verdict.unread
        )
        self.assertEqual(((), 3), (verdict.differences, verdict.status))

    def test_libvirt(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.placement.delete(f"/allocations/{server['id']}")
        sources = self.sources()
        silent = gather.Sources(sources.host, Unanswering(), sources.placement, sources.unavailable)
        with self.on("host1"):
            verdict = command.judge(silent, mend=False, again_after_s=0)
        self.assertEqual(
            ("libvirt: nobody is there; see [libvirt]virt_type and connection_uri",), verdict.unread
        )
        self.assertEqual([Kind.ALLOCATION_DIFFERS], [each.kind for each in verdict.differences])
        self.assertEqual(3, verdict.status)


class VGPUsTest(alone.Alone, Verifying, profiled.ProfiledServersTestBase):
    def test_what_is_missing_miscounted_and_left(self) -> None:
        kernel = self.kernels["host1"]
        server, (slot,) = self.boot(self.of_type(1155)), profiled.slots(1155, profiled.FIRST[0])
        whole = self.boot(self.flavor(gpus="= 1", vgpus="= 1", vgpu_type="nvidia-1155"))
        self.assertFound()
        kernel.forget_all()
        self.assertFound((Kind.VGPU_MISSING, slot), (Kind.VGPU_MISSING, self.recorded(whole)[0]))
        for each in (server, whole):
            self._reboot_server(each, hard=True)
        self.assertVGPUs(server, [slot])
        self.assertFound()
        for each in (server, whole):
            before = self.allocations(each)
            self.placement.delete(f"/allocations/{each['id']}")
            self.judge(mend=True)
            self.assertFound()
            self.assertEqual(before, self.allocations(each))
        with mock.patch.object(self.driver._gpus.vgpus, "release"):
            self._delete_server(server)
        self.assertFound((Kind.VGPU_LEFT, slot))
        self.period()
        self.assertFound()

    def test_an_inventory_that_says_too_much_or_too_little(self) -> None:
        """Also of a type that nobody has, on a card that is partly another's."""
        self.boot(self.of_type(1155))
        self.assertFound()
        for number in (1155, 1147):
            name = f"host1_gpu_{self.PRODUCT}_vgpu_nvidia-{number}"
            provider = self._get_provider_uuid_by_name(name)
            url = f"/resource_providers/{provider}/inventories/VGPU"
            right = self.inventories()[number]
            for total, kind in (
                (right[0] + 1, Kind.INVENTORY_EXCEEDS),
                (1, Kind.INVENTORY_SHORT),
            ):
                now = self.placement.get(url).body
                self.placement.put(url, {**now, "total": total, "reserved": 0, "max_unit": total})
                self.assertFound((kind, name))
                # Nova looks only every five minutes at what somebody else has written there.
                self.driver.virtapi.reportclient.clear_provider_cache()
                self.period()
                self.assertFound()
                self.assertEqual(right, self.inventories()[number])


class MediatedTest(alone.Alone, Verifying, divided.DividedServersTestBase):
    def test_two_types_that_come_and_go(self) -> None:
        self.assertFound()
        servers = [self.boot(self.of_type(number)) for number in (63, 64, 63)]
        self.assertFound()
        for server in servers:
            self._stop_server(server)
            self.assertFound()
            self._delete_server(server)
            self.assertFound()
        self.period()
        self.assertFound()
