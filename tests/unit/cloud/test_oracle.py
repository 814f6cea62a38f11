# SPDX-License-Identifier: Apache-2.0
"""What the oracle says of a cloud in which all agree, and of one in which something differs."""

from __future__ import annotations

import dataclasses
import unittest
from typing import Any

from tests.cloud import oracle, snapshot
from tests.cloud.snapshot import Cell, Device, Domain, Host, Inventory, Provider, Size

ROOT, GROUP, PROJECT, UUID = "root", "group", "project", "uuid"
CARDS = frozenset({"0000:04:00.0", "0000:05:00.0"})
CARD, OTHER = sorted(CARDS)
PARTS = {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}

INSTANCE = snapshot.Instance(
    uuid=UUID,
    project=PROJECT,
    host="host1",
    vm_state="active",
    task_state=None,
    power_state=1,
    size=Size(1, 128, 1),
    parts=PARTS,
    device_count=1,
    devices=(Device(GROUP, "PGPU", CARD),),
    cells={0: Cell(128, 1)},
    files=(("disk", 10),),
)
HOST = Host(
    name="host1",
    provider=ROOT,
    is_up=True,
    is_container=False,
    domains={UUID: Domain(UUID, "instance-1", True, (CARD,), ())},
    cards=CARDS,
    offers=CARDS,
    published={GROUP: CARDS},
    free={GROUP: frozenset({OTHER})},
    size=Size(1, 640, 1),
    reserved=Size(0, 512, 0),
    cells={0: Cell(128, 1)},
)
CLOUD = snapshot.Cloud(
    hosts={"host1": HOST},
    instances={UUID: INSTANCE},
    migrations={},
    providers={
        ROOT: Provider(ROOT, "host1", ROOT, {"VCPU": Inventory(8, 0)}, {UUID: PARTS}),
        GROUP: Provider(GROUP, "host1_gpu_x", ROOT, {"PGPU": Inventory(2, 0)}, {UUID: {"PGPU": 1}}),
    },
    usages={PROJECT: PARTS | {"PGPU": 1}},
)
DOMAIN_OF_NONE = Domain(UUID, "instance-1", True, (), ())
STRANGER, THIEF = (Domain("other", "other", True, has, ()) for has in ((), (CARD,)))
BILL = snapshot.Bill(True, UUID, "host1", (CARD,))
END = snapshot.Bill(False, UUID, "host1", (CARD,))
AGAIN = dataclasses.replace(END, starts=1)


def with_host(**changes: Any) -> snapshot.Cloud:
    return dataclasses.replace(CLOUD, hosts={"host1": dataclasses.replace(HOST, **changes)})


def with_provider(**changes: Any) -> snapshot.Cloud:
    group = dataclasses.replace(CLOUD.providers[GROUP], **changes)
    return dataclasses.replace(CLOUD, providers=CLOUD.providers | {GROUP: group}, usages={})


def with_instance(**changes: Any) -> snapshot.Cloud:
    changed = dataclasses.replace(INSTANCE, **changes)
    return dataclasses.replace(CLOUD, instances={UUID: changed})


def on_a_second_host() -> snapshot.Cloud:
    """Counted there as well"""
    host = snapshot.Host("host2", "root2", is_up=True, is_container=False, domains={})
    root = dataclasses.replace(CLOUD.providers[ROOT], uuid="root2", name="host2", root="root2")
    return dataclasses.replace(
        CLOUD,
        hosts=CLOUD.hosts | {"host2": host},
        providers=CLOUD.providers | {"root2": root},
        usages={},
    )


def empty(**changes: Any) -> snapshot.Cloud:
    """Without the instance, with a host that is not as it was before"""
    host = dataclasses.replace(
        HOST, domains={}, size=HOST.reserved, cells={}, free={GROUP: CARDS}, **changes
    )
    providers = {
        uuid: dataclasses.replace(provider, allocations={})
        for uuid, provider in CLOUD.providers.items()
    }
    return snapshot.Cloud({"host1": host}, {}, {}, providers)


def kinds(now: snapshot.Cloud, before: snapshot.Cloud | None = None) -> set[str]:
    return {difference.kind for difference in oracle.differences(before, now)}


class DifferencesTest(unittest.TestCase):
    def test_all_agree(self) -> None:
        self.assertEqual([], oracle.differences(None, CLOUD))
        self.assertEqual([], oracle.differences(None, empty()))

    def test_each_difference(self) -> None:
        rows: tuple[tuple[set[str], snapshot.Cloud], ...] = (
            ({"tracker"}, with_host(cells={0: Cell(256, 1)})),
            ({"tracker"}, with_host(cells={0: Cell(128, 1, frozenset({3}))})),
            ({"tracker"}, with_host(cells={0: Cell(128, 1, pages_mb=128)})),
            ({"tracker"}, with_host(size=Size(1, 641, 1))),
            ({"lost"}, with_host(cards=CARDS | {"0000:06:00.0"})),
            (set(), with_host(cards=CARDS | {"0000:06:00.0"}, reasons={"0000:06:00.0": "ill"})),
            ({"compute", "domain", "tracker"}, with_instance(host="host2")),
            ({"compute"}, with_instance(parts=PARTS | {"MEMORY_MB": 256})),
            ({"doubled"}, on_a_second_host()),
            ({"text"}, with_instance(fault="two\nlines")),
            (set(), with_instance(fault="a line")),
            ({"allocation", "hold"}, with_provider(allocations={})),
            ({"inventory", "hold"}, with_provider(inventories={"PGPU": Inventory(3, 0)})),
            ({"hold", "reserved"}, with_provider(inventories={"PGPU": Inventory(2, 1)})),
            ({"hold", "offered"}, with_host(free={GROUP: CARDS})),
            ({"devices"}, with_host(domains={UUID: DOMAIN_OF_NONE})),
            ({"power"}, with_host(domains={UUID: Domain(UUID, "one", False, (CARD,), ())})),
            ({"domain"}, with_host(domains=HOST.domains | {"other": STRANGER})),
            ({"domain", "shared"}, with_host(domains=HOST.domains | {"other": THIEF})),
            ({"task"}, with_host(tasks=("a task",))),
            ({"task"}, with_instance(task_state="powering-off")),
            ({"flavor"}, with_instance(device_count=2)),
            ({"usage"}, dataclasses.replace(CLOUD, usages={PROJECT: PARTS})),
            ({"limit"}, dataclasses.replace(CLOUD, limits={PROJECT: {"PGPU": 0}})),
            (set(), dataclasses.replace(CLOUD, limits={PROJECT: {"PGPU": 1}})),
            ({"bill"}, dataclasses.replace(CLOUD, bills=(BILL, BILL))),
            ({"bill"}, dataclasses.replace(empty(), bills=(BILL,))),
            ({"bill"}, dataclasses.replace(empty(), bills=(BILL, END, END))),
            (set(), dataclasses.replace(empty(), bills=(BILL, END, AGAIN))),
            ({"bill"}, dataclasses.replace(empty(), bills=(BILL, END, AGAIN, AGAIN))),
            ({"text"}, dataclasses.replace(CLOUD, unprintable=("two\nlines",))),
        )
        for expected, cloud in rows:
            with self.subTest(expected):
                self.assertEqual(expected, kinds(cloud))

    def test_a_mediated_device_that_a_boot_removed(self) -> None:
        """Nobody can say of which card the domain of a stopped guest has it."""
        cloud = with_instance(vm_state="stopped", power_state=4)
        for is_running, expected in ((False, set[str]()), (True, {"devices", "power"})):
            domain = Domain(UUID, "instance-1", is_running, ("9a3b8c5e",), ())
            host = dataclasses.replace(HOST, domains={UUID: domain})
            with self.subTest(is_running):
                differences = kinds(dataclasses.replace(cloud, hosts={"host1": host}))
                self.assertEqual(expected, differences)

    def test_what_an_operation_left_uncounted(self) -> None:
        """It is reserved, so that nobody is given it, until the operation ends."""
        provider = with_provider(inventories={"PGPU": Inventory(2, 1)}, allocations={})
        for task, expected in (("rebuilding", False), (None, True)):
            instance = dataclasses.replace(INSTANCE, task_state=task)
            cloud = dataclasses.replace(provider, instances={UUID: instance})
            with self.subTest(task):
                self.assertEqual(expected, "reserved" in kinds(cloud))

    def test_a_resized_container_names_a_card_once(self) -> None:
        """It has two MIG instances of one card."""
        both = tuple(Device(GROUP, "VGPU", f"{CARD}/{part}") for part in range(2))
        instance = dataclasses.replace(INSTANCE, vm_state="resized", devices=both)
        move = snapshot.Migration("move", UUID, "resize", "finished", "host2", "host1")
        for is_container in (True, False):
            cloud = dataclasses.replace(
                with_host(is_container=is_container),
                instances={UUID: instance},
                migrations={"move": move},
            )
            with self.subTest(is_container):
                self.assertEqual(not is_container, "devices" in kinds(cloud))

    def test_the_charge_of_a_move(self) -> None:
        """Nova asks for no quota for a migration, of which Placement counts both ends."""
        for kind, expected in (("migration", False), ("resize", True)):
            instance = dataclasses.replace(
                INSTANCE,
                vm_state="resized",
                devices=(Device(GROUP, "PGPU", OTHER),),
                old=(Device(GROUP, "PGPU", CARD),),
            )
            move = snapshot.Migration("move", UUID, kind, "finished", "host1", "host1")
            allocations = {UUID: PARTS | {"PGPU": 1}, "move": {"PGPU": 1}}
            cloud = dataclasses.replace(
                with_provider(allocations=allocations),
                instances={UUID: instance},
                migrations={"move": move},
                limits={PROJECT: {"PGPU": 1}},
            )
            with self.subTest(kind):
                self.assertEqual(expected, "limit" in kinds(cloud))

    def test_what_died_while_it_was_built(self) -> None:
        """Placement goes on to count for it, at Nova's word, and its claim alone would find it."""
        rows: tuple[tuple[str, bool, set[str]], ...] = (
            ("building", False, set()),
            ("error", False, set()),
            ("error", True, {"allocation"}),
        )
        for vm_state, is_launched, expected in rows:
            changes = {"devices": (), "vm_state": vm_state, "is_launched": is_launched}
            host = dataclasses.replace(HOST, domains={}, free={GROUP: CARDS})
            cloud = dataclasses.replace(with_instance(**changes), hosts={"host1": host})
            with self.subTest(vm_state, is_launched=is_launched):
                self.assertEqual(expected, kinds(cloud))

    def test_a_host_that_is_down_is_asked_nothing(self) -> None:
        absent = Host("host1", ROOT, False, False, domains={})
        down = dataclasses.replace(CLOUD, hosts={"host1": absent})
        self.assertEqual([], oracle.differences(None, down))

    def test_what_was_there_before_is_not_left(self) -> None:
        left = (("quarantine", CARD),)
        self.assertEqual({"quarantine"}, kinds(empty(left=left)))
        self.assertEqual(set(), kinds(empty(left=left), empty(left=left)))


class OutcomeTest(unittest.TestCase):
    def test_of_two_instances(self) -> None:
        stopped = dataclasses.replace(INSTANCE, vm_state="stopped", power_state=4)
        self.assertEqual([], oracle.same_outcome(INSTANCE, INSTANCE))
        self.assertEqual([], oracle.same_outcome(None, None))
        self.assertEqual(2, len(oracle.same_outcome(INSTANCE, stopped)))
        for one, other in ((INSTANCE, None), (None, INSTANCE)):
            self.assertEqual(1, len(oracle.same_outcome(one, other)))

    def test_of_a_refused_operation(self) -> None:
        self.assertEqual([], oracle.unchanged(CLOUD, CLOUD, UUID))
        rows = (
            with_instance(vm_state="stopped"),
            with_instance(power_state=4),
            with_instance(files=(("disk", 11),)),
            with_instance(devices=()),
            with_host(domains={}),
            with_host(domains={UUID: DOMAIN_OF_NONE}),
            dataclasses.replace(CLOUD, providers={ROOT: CLOUD.providers[ROOT]}),
        )
        for now in rows:
            self.assertEqual(1, len(oracle.unchanged(CLOUD, now, UUID)), now)
        # In the words of an instance without GPUs, with which it is compared
        for now in (with_host(domains={}), dataclasses.replace(CLOUD, providers={})):
            (gone,) = oracle.unchanged(CLOUD, now, UUID)
            self.assertNotRegex(gone.text, f"{CARD}|PGPU")
