# SPDX-License-Identifier: Apache-2.0
"""Clouds of stock Nova, drawn by a seed, are taken over, used, and given back.

How many they are is in the environment, and so is the seed; ``tools/test clouds`` is the long run.
A cloud that fails says all that was drawn, in the detail "history".
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from nova import context as nova_context
from nova import objects
from nova.conf import devices
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client as api_client
from testtools import content, content_type

from nova_gpu.conf import CONF
from nova_gpu.host.pci import sysfs
from nova_gpu.host.vgpu import mdev
from nova_gpu_migrate.cmd import adopt, leave
from nova_gpu_migrate.core import adoption_plan, leave_plan
from nova_gpu_migrate.core.stock_holding import Obstacle, StockHolding, StockInstance, StockReturn
from nova_gpu_migrate.virt import records
from nova_gpu_migrate.virt.shadow import Shadow
from tests.cloud import databases
from tests.functional import (
    NOVA,
    aliases,
    base,
    celled,
    divided,
    dump,
    kvm,
    leftovers,
    live,
    outside,
    profiled,
    stock,
)
from tests.functional.base import Server
from tests.functional.stock import OURS, STOCK
from tests.matrix.stage import Stage

CLOUDS, SEED = "NOVA_GPU_CLOUDS", "NOVA_GPU_SEED"
ALIAS, VGPU = "pci_passthrough:alias", "resources:VGPU"
NODE, OF_CARDS = "CUSTOM_GPU_NODE", "CUSTOM_FAST"
_NIC = {"vendor_id": "8086", "product_id": "1533"}
# Nova detaches the devices of one that is suspended from its guest, and its domain keeps them.
_RUNS = ("ACTIVE", "PAUSED", "RESCUE", "SHUTOFF", "SUSPENDED")
# About as many writes as adopt and leave do for a host
_PLACES = 40

# By whom a flavor is told apart from others that ask for the same devices
_MORE: Sequence[Mapping[str, str]] = (
    *({}, {}, {}),
    {f"trait:{NODE}": "forbidden"},
    {"hw:numa_nodes": "1"},
    {"hw:numa_nodes": "1", "hw:pci_numa_affinity_policy": "preferred"},
    {"hw:pci_numa_affinity_policy": "required"},
    {"hw:cpu_policy": "shared", "quota:cpu_shares": "10"},
)
# What operators have written into instances' own flavors, which the API would refuse
_HOME_MADE: Sequence[Mapping[str, str]] = (
    *[{}] * 12,
    {"vgpu_type": "none"},
    {"vgpus": "= 1"},
    {"gpu_arch": "Turing"},
)


class Walking(live.Moving, stock.StockTestBase):
    """Two hosts of stock Nova; ``drivers`` are those that they have now.

    ``taken`` are the hosts whose takeover has ended. ``obstacles`` and ``back`` are what the plans
    of adopt have said, by instance, and ``texts`` is all of it. ``touched`` are the instances that
    somebody has done something with since.
    """

    CAST_AS_CALL = False
    HOSTS = ("host1", "host2")
    SOME: ClassVar[int] = 0
    WORDS: ClassVar[Sequence[Mapping[str, str]]]
    # By which new instances ask nova-gpu
    OWN: ClassVar[Mapping[str, str]] = {"gpus": "= 1"}

    def setUp(self) -> None:
        if NOVA < 34:
            self.skipTest("Nova before 2026.2 runs on eventlet, and no test sees when it is idle")
        self.drivers: dict[str, str] = {}
        self.history: list[str] = []
        self.touched: set[str] = set()
        self.taken: set[str] = set()
        self.obstacles: dict[str, Sequence[Obstacle]] = {}
        self.back: dict[str, Sequence[Obstacle]] = {}
        self.texts: dict[str, str] = {}
        super().setUp()
        self.useFixture(nova_fixtures.CinderFixture(self))
        self.flags(shelved_offload_time=0)
        for trait in (NODE, OF_CARDS):
            self.placement.put(f"/traits/{trait}", None, version="1.6")

    # What a kind of clouds is

    def draw(self) -> None:
        """Draw the options of stock Nova."""
        raise NotImplementedError

    def choose(self, driver: str) -> None:
        """Take the options that a host has with *driver*."""
        self.flags(compute_driver=driver)

    def devices_of(self, server: Server, host: str) -> list[str]:
        """Return the GPUs in the guest's domain."""
        raise NotImplementedError

    def asked(self, words: Mapping[str, str]) -> int:
        """Return for how many GPUs a flavor asks, of either driver."""
        by_alias = adoption_plan.alias_counts(words)
        own = sum(int(words.get(name, "0").removeprefix("= ")) for name in ("gpus", "vgpus"))
        groups = sum(int(words[name]) for name in words if name.endswith(":VGPU"))
        stock = groups + sum(count for name, count in by_alias.items() if name != "nic")
        return stock or own

    # The walk

    def walk(self, seed: str) -> None:
        self.chance = random.Random(seed)
        detail = content.Content(content_type.UTF8_TEXT, lambda: ["\n".join(self.history).encode()])
        self.addDetail("history", detail)
        self.note(f"{type(self).__name__}, seed {seed}")
        self.draw()
        for host in self.hosts:
            self.restart_host(host)
        self.populate()
        for host in self.hosts:  # Nova then has no pools any more of which all is taken
            self.restart_host(host)
        self.periods()
        before = dump.dump(self)
        hosts = self.chance.choice((*[self.HOSTS] * 4, *((host,) for host in self.HOSTS)))
        taken = []
        for host in hosts:
            if self.take_over(host, is_last=self.is_last(host, hosts)):
                taken.append(host)
            self.check()
            for _ in range(self.chance.choice((0, 0, 1))):
                self.use()
        self.note(f"taken over: {taken}")
        if len(taken) == len(self.HOSTS):
            self.check_shelved()
        self.compare(before, stock.MEANWHILE)
        for _ in range(self.chance.choice((1, 2, 3))):
            self.use()
        for host in taken:
            self.give_back(host, is_last=self.is_last(host, taken))
            self.check()
        self.compare(before, stock.REMAINS)
        self.end_moves()
        self.check()
        for server in self._servers():
            if server["status"] == "ACTIVE":
                self.act(server, "reboot", {"type": "HARD"})
        self.check()

    def is_last(self, host: str, hosts: Sequence[str]) -> bool:
        """Return whether shelved instances are changed with this host."""
        return host == hosts[-1]

    def check_shelved(self) -> None:
        """Check that a shelved instance that no host could start any more was named."""
        for server in self._servers():
            by_alias = adoption_plan.alias_counts(server["flavor"]["extra_specs"])
            is_named = any(name != "nic" for name in by_alias) and server["id"] not in self.touched
            if is_named and server["status"] == "SHELVED_OFFLOADED":
                self.assertTrue(self.obstacles.get(server["id"]), "no word in the plan")

    def compare(self, before: databases.Dump, expected: Sequence[str]) -> None:
        """Check that nothing else differs, of instances that nobody has used."""
        lines = databases.differences(before, dump.dump(self), expected)
        if self.touched:
            own = {server["id"] for server in self._servers()} - self.touched
            lines = [line for line in lines if any(uuid in line for uuid in own)]
        self.assertEqual([], lines)

    def settle(self) -> None:
        """Wait until nothing goes on any more, and no message is on its way."""

        def settled() -> None:
            self.assertEqual([], list(objects.BuildRequestList.get_all(self.context)))
            for instance in self._instances_left():
                if instance.vm_state != "error":
                    self.assertIsNone(instance.task_state, instance.vm_state)
                    self.assertNotEqual("building", instance.vm_state)

        Stage(self).wait()  # to look costs more than most of what is waited for
        self._wait_for_assert(settled)
        Stage(self).wait()

    def note(self, text: str) -> None:
        self.history.append(text)

    def restart_host(self, name: str) -> None:
        self.choose(self.drivers.setdefault(name, STOCK))
        super().restart_host(name)
        # Stock Nova has read its options; nova-gpu reads them again.
        self.choose(OURS if OURS in self.drivers.values() else STOCK)

    def tearDown(self) -> None:
        """Leave everything as it is: the walk has seen it."""
        super(leftovers.LeavesNothing, self).tearDown()

    # The commands, of which it does what they do between their questions

    def shelved(self, host: str) -> list[StockInstance]:
        """Return the shelved instances of the host's cell."""
        return records.shelved(self.context)

    def plan(self, host: str, *, is_last: bool) -> tuple[Shadow, list[StockHolding]]:
        """Return what adopt finds and would do; what it says is noted, and the same each time."""
        report = self.look(host)
        self.assertEqual((), report.unread)
        shelved = self.shelved(host) if is_last else []
        judged = (adoption_plan.judge_shelved(it, report.aliases) for it in shelved)
        holdings = [*report.holdings, *filter(None, judged)]
        for holding in holdings:
            uuid, obstacles = holding.instance.uuid, list(holding.obstacles)
            if uuid not in self.touched:
                self.assertEqual(obstacles, list(self.obstacles.get(uuid, obstacles)), self.history)
            self.obstacles[uuid], self.back[uuid] = obstacles, list(holding.back)
            self.texts[uuid] = "; ".join(adopt.lines(holding, "stays", "goes"))
            self.note(f"{host}: {self.texts[uuid]}")
        return report, holdings

    def interrupted(self, work: Callable[..., int], host: str, items: Sequence[Any]) -> int | None:
        """Do the *work* of a command, which is killed by chance; return ``None`` then."""
        if self.chance.random() < 0.6:
            return work(host, items)
        places = outside.Outside(self.chance.randint(1, _PLACES))
        status = None
        with places.watched():
            status = work(host, items, places.over)
        self.note(f"killed {places.done_at}" if places.done_at else f"no {_PLACES} writes")
        return None if places.done_at else status

    def go_on(self, host: str) -> None:
        """Start nova-compute after a command was killed, as the page says, or run it again."""
        if self.chance.random() < 0.5:
            return
        before, self.drivers[host] = self.drivers[host], OURS
        self.restart_host(host)
        self.note(f"start nova-compute on {host}")
        for _ in range(self.chance.choice((1, 2))):
            self.use()
        self.computes[host].stop()
        self.drivers[host] = before

    def take_over(self, host: str, *, is_last: bool) -> bool:
        """Take the host's instances over; return whether the command did not refuse."""
        self.computes[host].stop()
        self.choose(OURS)
        had = {domain.UUIDString(): domain.XMLDesc(0) for domain in self._domains(host)}
        report, holdings = self.plan(host, is_last=is_last)
        for uuid in had:
            if self.devices_of({"id": uuid}, host):
                self.assertIn(uuid, self.obstacles, "no word in the plan")
        try:
            adopt.check_named(report)
            if reason := adopt.misplaced(report, holdings):
                raise adopt.NotReady(reason)
        except adopt.NotReady as error:
            self.note(f"{host}: {error}")
            self.restart_host(host)
            return False
        self.choose_types(report, holdings)
        while (status := self.interrupted(self._adopt, host, holdings)) is None:
            self.go_on(host)
            self.choose(OURS)
            _, holdings = self.plan(host, is_last=is_last)
        self.assertEqual(any(it.obstacles for it in holdings), bool(status), self.history)
        self.drivers[host] = OURS
        self.taken.add(host)
        self.restart_host(host)
        self.tidy(host)
        self.period(host)
        for domain in self._domains(host):
            if (uuid := domain.UUIDString()) not in self.touched:
                self.assertEqual(had[uuid], domain.XMLDesc(0))
        return True

    def _adopt(self, host: str, holdings: Sequence[StockHolding], over: Any = bool) -> int:
        self.forget(host, holdings)
        work = self.takeover(host)
        over(work._client)
        return adopt.take_over(work, holdings)

    def choose_types(self, report: Shadow, holdings: Sequence[StockHolding]) -> None:
        """Do what adopt asks for before it takes over vGPUs."""

    def tidy(self, host: str) -> None:
        """Do what the page says after a takeover."""

    def prepare_return(self, host: str) -> None:
        """Do what stock Nova's operator has to do at a boot of the host."""

    def give_back(self, host: str, *, is_last: bool, is_stopped: bool = False) -> None:
        """Give the host's instances back; what is in the way was named, or somebody's doing."""
        is_ended = not is_stopped and self.chance.random() < 0.7
        if is_ended:
            self.end_moves()
        self.computes[host].stop()
        self.prepare_return(host)
        self.choose(STOCK)
        report = self.look(host)
        shelved = self.shelved(host) if is_last else []
        judged = (leave_plan.judge_shelved(it, report.aliases) for it in shelved)
        items = [*report.leavings, *filter(None, judged)]
        for item in items:
            self.note(f"{host}: {'; '.join(adopt.lines(item, 'stays', 'goes back'))}")
        hindered = [item for item in items if item.obstacles]
        for item in hindered:
            uuid = item.instance.uuid
            if uuid not in self.touched and not self.obstacles.get(uuid):
                self.assertEqual(list(self.back[uuid]), list(item.obstacles), self.history)
        if hindered or report.consumers:
            self.note(f"{host}: counted for {', '.join(report.consumers)}")
            self.choose(OURS)
            self.restart_host(host)
            if not is_ended:
                self.end_moves()
            else:
                self.assertTrue(hindered, report.consumers)
                for item in hindered:
                    self._delete_server({"id": item.instance.uuid})
                    self.touched.add(item.instance.uuid)
            return self.give_back(host, is_last=is_last)
        self.taken.discard(host)
        leave.check_consumers(report)
        if self.interrupted(self._leave, host, items) is None:
            self.go_on(host)
            return self.give_back(host, is_last=is_last, is_stopped=True)
        self.drivers[host] = STOCK
        self.restart_host(host)
        self.period(host)

    def _leave(self, host: str, items: Sequence[StockReturn], over: Any = bool) -> int:
        work = self.giving_back(host)
        over(work._client)
        status = leave.give_back(work, items)
        self.assertEqual(0, status, self.history)
        self.forget(host, items)
        return status

    # Instances

    def populate(self) -> None:
        """Boot instances, and bring them and their flavors into all kinds of states."""
        for number in range(self.chance.choice((2, 3, 4))):
            words = {**self.chance.choice(self.WORDS), **self.chance.choice(_MORE)}
            host = self.chance.choice(self.HOSTS)
            # There is one volume with an image.
            states = [state for state in _STATES if state != "volume" or number == 0]
            state = self.chance.choice((*states, *_TAKEN_OVER))
            name = f"{number}-{state}"
            flavor = self.flavor(name, **words)
            self.note(f"boot {name} on {host}: {words}")
            request = self._build_server(flavor_id=flavor, networks="none", name=name, host=host)
            body: dict[str, Any] = {"server": request}
            if state == "volume":
                volume = {"uuid": nova_fixtures.CinderFixture.IMAGE_BACKED_VOL, "boot_index": 0}
                volume |= {"source_type": "volume", "destination_type": "volume"}
                request |= {"imageRef": "", "block_device_mapping_v2": [volume]}
            elif state == "group":
                group = {"name": name, "policy": "soft-anti-affinity"}
                made = self.api.post_server_groups(group)
                body["os:scheduler_hints"] = {"group": made["id"]}
            server = self.admin_api.post_server(body)
            self.settle()
            server = self._show_server(server)
            if server["status"] == "ERROR":  # the host has no room
                self.note(f"    {server['fault']['message']}")
                self._delete_server(server)
                continue
            self.assertEqual("ACTIVE", server["status"])
            _STATES[state](self, server)
            self.settle()
            status = self._show_server(server)["status"]
            self.assertEqual(state == "error", status == "ERROR", f"{name}: {status}")
            if self.chance.random() < 0.2:
                self.admin_api.delete_flavor(flavor)
            more = self.chance.choice(_HOME_MADE)
            own = self.instance(server).flavor.extra_specs
            # With resources:VGPU, vgpus is a flavor of nova-gpu's that Nova's API counts.
            if more and self.asked(own) and (ALIAS in own or "vgpus" not in more):
                self.edit(server, own | more)

    def edit(self, server: Server, words: dict[str, str]) -> None:
        """Change the properties of an instance's own flavor, as operators do by SQL."""
        self.note(f"    its own flavor: {words}")
        instance = self.instance(server)
        instance.flavor.extra_specs = words
        instance.save()
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        if spec.flavor.flavorid == instance.flavor.flavorid:
            spec.flavor.extra_specs = dict(instance.flavor.extra_specs)
            spec.save()

    def act(self, server: Server, action: str, body: Any = None) -> bool:
        """Ask for *action*, and wait until nothing goes on; return whether the API took it."""
        self.note(f"{action} {server['id']}: {body}")
        try:
            self.admin_api.post_server_action(server["id"], {action: body})
        except api_client.OpenStackApiException as error:
            self.assertIn(error.response.status_code, (400, 409), error)
            self.note(f"    refused: {error}")
            return False
        self.settle()
        return True

    def use(self) -> None:
        """Let an owner or an administrator do something with an instance.

        It does not end in error, and a guest that starts anew on its host has what it had, but for
        what the plan has said.
        """
        usable = (*_RUNS, "SHELVED_OFFLOADED", "VERIFY_RESIZE", "ERROR")
        servers = [server for server in self._servers() if server["status"] in usable]
        if not servers:
            return
        server = self.chance.choice(sorted(servers, key=lambda server: server["name"]))
        self.touched.add(server["id"])
        name = self.chance.choice((*_USES, *_OFTEN))
        before = self.functions(server)
        _USES[name](self, server)
        self.periods()
        answer = {item["id"]: item for item in self.check()}.get(server["id"])
        if answer and server["status"] != "ERROR":
            self.assertNotEqual("ERROR", answer["status"], answer.get("fault"))
        if answer and name in _IN_PLACE and before:
            more = self.functions(answer) - before
            text = self.texts.get(server["id"], "")
            self.assertEqual([], [item for item in more if item not in text], "no word in the plan")

    def functions(self, server: Server) -> set[str]:
        """Return all PCI functions in the guest's domain, none if it has no guest."""
        host = self.host_of(server)
        domains = self._domains(host) if host in self.hosts else ()
        if server["id"] not in [domain.UUIDString() for domain in domains]:
            return set()
        hostdevs = self.domain(server, host).findall("devices/hostdev[@type='pci']")
        return {*map(kvm.address, hostdevs)}

    def end_moves(self) -> None:
        """Confirm or revert the resizes of instances that somebody has begun meanwhile."""
        for server in self._servers():
            if server["status"] != "VERIFY_RESIZE" or server["id"] not in self.touched:
                continue
            if self.chance.random() < 0.5:
                self.act(server, "revertResize")
            else:
                with self.on(self._source(server["id"])):
                    self.act(server, "confirmResize")

    # The oracle

    def check(self) -> list[Server]:
        """Check that each instance has what it asks for, and no other has that; return them."""
        self.settle()
        servers: list[Server] = self._servers()
        for server in servers:
            words, host = server["flavor"]["extra_specs"], server["OS-EXT-SRV-ATTR:host"]
            if server["status"] in _RUNS and server["OS-EXT-STS:vm_state"] != "error":
                guest_devices = self.devices_of(server, host)
                self.assertEqual(
                    self.asked(words), len(guest_devices), f"{server['name']}: {words}"
                )
        for host in self.drivers:
            held = [
                device
                for domain in self._domains(host)
                for device in self.devices_of({"id": domain.UUIDString()}, host)
            ]
            twice = [device for device, count in collections.Counter(held).items() if count > 1]
            self.assertEqual([], twice, f"two instances of {host} have it")
            if host in self.taken and not any(self.obstacles.values()):
                self.assertEqual((), self.judge(host).differences, "\n".join(self.history))
        return servers


def _resize(walk: Walking, server: Server, words: Mapping[str, str]) -> None:
    small = {"memory_mb": 256, "vcpu": 1, "disk": 1, "ephemeral": 0}
    flavor = walk._create_flavor(**small, extra_spec=dict(words))
    walk.act(server, "resize", {"flavorRef": flavor})


def _acts(*actions: str, body: Any = None) -> Callable[[Any, Server], object]:
    return lambda walk, server: all(walk.act(server, action, body) for action in actions)


# Most are in a state that is not in the way
_TAKEN_OVER = ("active", "active", "stopped", "paused", "moved", "shelved", "group") * 3
# How the instances of a cloud of stock Nova are when the takeover comes
_STATES: Mapping[str, Callable[[Any, Server], object]] = {
    **dict.fromkeys(("active", "volume", "group"), _acts()),
    "stopped": _acts("os-stop"),
    "paused": _acts("pause"),
    "error": _acts("os-resetState", body={"state": "error"}),
    "shelved": _acts("shelve"),
    "suspended": _acts("suspend"),
    "rescued": lambda walk, server: walk.rescue(server),
    "moved": _acts("migrate"),
    "resized-away": lambda walk, server: _resize(walk, server, {}),
    "resized": lambda walk, server: _resize(walk, server, walk.chance.choice(walk.WORDS)),
}


def _boot(walk: Walking, _: Server) -> None:
    """Boot another one, as stock Nova's or nova-gpu's words have it; there may be no room."""
    words = walk.chance.choice((walk.OWN, *walk.WORDS))
    walk.note(f"boot another one: {words}")
    request = walk._build_server(flavor_id=walk.flavor(**words), networks="none", name="another")
    try:
        server = walk.admin_api.post_server({"server": request})
    except api_client.OpenStackApiException as error:  # it was renamed
        walk.assertIn("PCI alias a2 is not defined", str(error))
        return
    walk.touched.add(server["id"])
    walk.settle()
    if (server := walk._show_server(server))["status"] == "ERROR":
        walk.note(f"    {server['fault']['message']}")
        walk.assertIn("No valid host", server["fault"]["message"])
        walk._delete_server(server)


def _evacuate(walk: Walking, server: Server) -> None:
    host = walk.host_of(server)
    if host not in walk.drivers or server["status"] != "ACTIVE":
        return
    walk.force_down(host)
    walk.act(server, "evacuate", {})
    walk.bring_back(host)
    walk.settle()
    if (answer := walk._show_server(server))["status"] == "ERROR":
        walk.act(answer, "os-resetState", {"state": "active"})
        walk.act(answer, "reboot", {"type": "HARD"})
    elif answer["status"] == "SHUTOFF":
        walk.act(answer, "os-start")


def _delete(walk: Walking, server: Server) -> None:
    """Delete it; a resize is confirmed then, as :meth:`Walking.end_moves` does it."""
    walk.note(f"delete {server['id']}")
    is_moving = server["status"] == "VERIFY_RESIZE"
    with walk.on(walk._source(server["id"])) if is_moving else contextlib.nullcontext():
        walk._delete_server(server)


# What an owner or an administrator does with one meanwhile
_USES: Mapping[str, Callable[[Any, Server], object]] = {
    "reboot": _acts("reboot", body={"type": "HARD"}),
    "stop": _acts("os-stop"),
    "restart": _acts("os-stop", "os-start"),
    "move": _acts("migrate"),
    "shelve": _acts("shelve"),
    "unshelve": _acts("unshelve"),
    "return": _acts("shelve", "unshelve"),
    "resize": lambda walk, server: _resize(walk, server, server["flavor"]["extra_specs"]),
    "resize-away": lambda walk, server: _resize(walk, server, {}),
    "rebuild": _acts("rebuild", body={"imageRef": base.IMAGE}),
    "suspend": _acts("suspend", "resume"),
    "resume": _acts("resume"),
    "evacuate": _evacuate,
    "boot": _boot,
    "delete": _delete,
}


# What is done more often than the others: it changes what others may get
_OFTEN = ("boot", "boot", "resize-away", "delete")
# After which the guest is on its host as before
_IN_PLACE = ("reboot", "restart", "suspend", "resume", "rebuild")


class CardsTest(Walking):
    """Whole cards by aliases, some of them with a network function."""

    SOME = 3
    REPORTED: ClassVar[bool] = False
    SPECS: ClassVar[Sequence[Sequence[Mapping[str, Any]]]] = (
        (aliases.A2,),
        tuple({"address": f"*:{bus}:00.0"} for bus in ("3b", "5e", "af", "d8")),
        ({"address": {"domain": ".*", "bus": "[35ad].", "slot": "00", "function": "0"}},),
        ({**aliases.A2, "managed": "yes"},),
    )
    WORDS = (
        {ALIAS: "a2:1"},
        {ALIAS: "a2:1"},
        {ALIAS: "a2:2"},
        {ALIAS: "any:1"},
        {ALIAS: "any:1, a2:1"},
        {ALIAS: "nic:1,a2:1"},
        {},
    )

    def setUp(self) -> None:
        super().setUp()
        self.flags(report_in_placement=self.REPORTED, group="pci")
        self.flags(pci_in_placement=self.REPORTED, group="filter_scheduler")

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        """Start host1, whose cards vfio-pci has since it booted, or host2, which drives its own."""
        functions = aliases.devices()
        ids = {"vend_id": _NIC["vendor_id"], "prod_id": _NIC["product_id"]}
        functions.add_device("PCI", bus=6, slot=0, function=0, iommu_group=9, numa_node=0, **ids)
        is_driving = name == "host2"
        own = "cpu-only" if is_driving else "pairs-4"
        super().start_host(name, own, pci_info=functions, **kwargs)
        host = self.hosts[name]
        host.add_device("0000:06:00.0", *_NIC.values(), class_code=0x020000)
        for address in kvm.ALL if is_driving else ():
            node = int(address in kvm.SECOND_SOCKET)
            host.add_gpu(address, *aliases.A2.values(), driver="nouveau", numa_node=node)

    def populate(self) -> None:
        super().populate()
        if self.chance.random() < 0.2:  # the operator renames an alias
            self._aliases["other"] = self._aliases.pop("a2")
            self._name_aliases()
            for server in self._servers():
                words = self.instance(server).flavor.extra_specs
                if "a2:" in words.get(ALIAS, ""):
                    self.edit(server, words | {ALIAS: words[ALIAS].replace("a2:", "other:")})
        for domain in self._domains("host2"):  # as libvirt does with managed devices
            for address in self.devices_of({"id": domain.UUIDString()}, "host2"):
                (self.hosts["host2"].path(address) / "driver_override").write_text("vfio-pci\n")
                self.hosts["host2"].bind(address, "vfio-pci")

    def draw(self) -> None:
        a2: Mapping[str, Any] = aliases.A2
        ways, tags = [a2, {**a2, "device_type": "type-PCI"}, {**a2, "numa_policy": "required"}], {}
        if self.REPORTED:
            own = {"resource_class": "CUSTOM_A2"}
            tags = {**own, "traits": OF_CARDS}
            ways = [own, tags, *({**way, **own} for way in ways)]
        self._spec = [json.dumps({**item, **tags}) for item in self.chance.choice(self.SPECS)]
        other = {**self.chance.choice(ways), "numa_policy": "preferred"}
        self._aliases = {"a2": self.chance.choice(ways), "any": other, "nic": _NIC}
        # By a class alone Nova gives any function in a move (ResourceTracker._move_claim).
        has_ids = all("vendor_id" in spec for spec in self._aliases.values())
        self._others = [json.dumps(_NIC)] if has_ids else []
        self.note(f"device_spec {self._spec}")
        self._name_aliases()

    def _name_aliases(self) -> None:
        texts = [json.dumps({**spec, "name": name}) for name, spec in self._aliases.items()]
        self.note(f"aliases {texts}")
        self.flags(alias=texts, group="pci")

    def choose(self, driver: str) -> None:
        super().choose(driver)
        self.device_spec(*(self._spec if driver == STOCK else ()), *self._others)

    def _setup_compute_service(self) -> None:
        self._spec, self._others = [aliases.ALL_A2], [json.dumps(_NIC)]
        self.choose(STOCK)

    def devices_of(self, server: Server, host: str) -> list[str]:
        functions = self.domain(server, host).findall("devices/hostdev[@type='pci']")
        return sorted(it for it in map(kvm.address, functions) if it in kvm.ALL)


class ReportedCardsTest(CardsTest):
    REPORTED = True


class MediatedTest(Walking, stock.StockMediatedTestBase):
    """Mediated devices, of one type, or of one at each card with a resource class of its own."""

    SOME = 3
    OTHER = "CUSTOM_P4_4Q"
    OWN: ClassVar[Mapping[str, str]] = {"vgpus": "= 1"}
    _is_chosen = False
    WORDS = ({VGPU: "1"}, {VGPU: "2"}, {})

    def draw(self) -> None:
        self._types: Mapping[str, tuple[list[str], str]] = {"nvidia-64": ([], "VGPU")}
        groups = {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"}
        self.WORDS = (*type(self).WORDS, groups)
        if self.chance.random() < 0.5:
            own = self.chance.choice(("VGPU", self.OTHER))
            self._types = {
                "nvidia-64": ([divided.FIRST], "VGPU"),
                "nvidia-65": ([divided.SECOND], own),
            }
            self.WORDS = ({VGPU: "1"}, {f"resources:{own}": "1"}, {f"resources:{own}": "2"}, {})
        self._is_chosen = self.chance.random() < 0.5
        self.note(f"types {self._types}, {'' if self._is_chosen else 'not '}chosen")

    def choose_types(self, report: Shadow, holdings: Sequence[StockHolding]) -> None:
        if reason := adopt.other_types(report, holdings):
            self.note(reason)
            self._is_chosen = True
            self.choose(OURS)

    def check(self) -> list[Server]:
        servers = super().check()
        for host in self.hosts:
            mediated_devices = mdev.devices(self.hosts[host].roots).values()
            self.assertLessEqual(
                {item.type_id for item in mediated_devices}, {*self._types}, self.history
            )
        return servers

    def choose(self, driver: str) -> None:
        super().choose(driver)
        types = self._types if driver == STOCK else {}
        self.flags(enabled_mdev_types=list(types), group="devices")
        if self._is_chosen:  # an override that is cleared still counts as one
            self.flags(vgpu_types=list(self._types), group="gpu")
        devices.register_dynamic_opts(CONF)
        for name, (addresses, own) in types.items():
            self.flags(device_addresses=addresses, mdev_class=own, group=f"mdev_{name}")

    def asked(self, words: Mapping[str, str]) -> int:
        return super().asked(words) + int(words.get(f"resources:{self.OTHER}", "0"))

    def devices_of(self, server: Server, host: str) -> list[str]:
        return self.mediated(server, host)


class FunctionsTest(Walking, stock.StockFunctionsTestBase):
    """Virtual functions with a vGPU type, by aliases; the operator gives them the type at boot."""

    SOME = 2
    TYPE = 1147
    OWN: ClassVar[Mapping[str, str]] = {"vgpus": "= 1", "vgpu_type": f"s== nvidia-{TYPE}"}
    WORDS = ({ALIAS: "q:1"}, {ALIAS: "q:1"}, {ALIAS: "q:2"}, {ALIAS: "any:1"}, {})
    FUNCTIONS = (*profiled.FIRST, *profiled.SECOND)

    def draw(self) -> None:
        functions = self.chance.choice(("[4-7]", "[04-7]"))
        place = {"domain": ".*", "bus": "(3b|af)", "slot": "00", "function": functions}
        ways: Sequence[Mapping[str, str]] = (
            self.L40S,
            {**self.L40S, "device_type": "type-VF"},
            {**self.L40S, "numa_policy": "required"},
        )
        self._spec = [json.dumps({"address": place, "managed": "no"})]
        named = [json.dumps({**self.chance.choice(ways), "name": name}) for name in ("q", "any")]
        self.note(f"device_spec {self._spec}, aliases {named}")
        self.flags(alias=named, group="pci")

    def _setup_compute_service(self) -> None:
        self._spec = []
        self.choose(STOCK)

    def choose(self, driver: str) -> None:
        super().choose(driver)
        self.device_spec(*(self._spec if driver == STOCK else ()))

    def devices_of(self, server: Server, host: str) -> list[str]:
        functions = self.domain(server, host).findall("devices/hostdev[@type='pci']")
        return sorted(kvm.address(function) for function in functions)

    def tidy(self, host: str) -> None:
        self._give_type(host, 0)

    def prepare_return(self, host: str) -> None:
        self._give_type(host, self.TYPE)

    def _give_type(self, host: str, number: int) -> None:
        """Give all functions that no guest has a type, or none."""
        guests = [{"id": domain.UUIDString()} for domain in self._domains(host)]
        held = [item for guest in guests for item in self.devices_of(guest, host)]
        for function in set(self.FUNCTIONS) - {*held}:
            path = self.hosts[host].path(function) / "nvidia/current_vgpu_type"
            if int(path.read_text()) != number:
                sysfs.write(str(path), str(number), 10)


class TwoCellsTest(celled.TwoCells, CardsTest):
    """Each host has a cell, and takes its cell's shelved instances."""

    SOME = 1
    restart_host = celled.of_host(CardsTest.restart_host)
    look = celled.of_host(CardsTest.look)
    judge = celled.of_host(CardsTest.judge)
    takeover = celled.of_host(CardsTest.takeover)
    giving_back = celled.of_host(CardsTest.giving_back)
    shelved = celled.of_host(CardsTest.shelved)
    _adopt = celled.of_host(CardsTest._adopt)
    _leave = celled.of_host(CardsTest._leave)

    def is_last(self, host: str, hosts: Sequence[str]) -> bool:
        return True

    def instance(self, server: Server) -> objects.Instance:
        admin = nova_context.get_admin_context()
        mapping = objects.InstanceMapping.get_by_instance_uuid(admin, server["id"])
        (host,) = (host for host, cell in celled.CELLS.items() if cell == mapping.cell_mapping.name)
        with self.in_cell_of(host):
            return super().instance(server)


_CASES = (CardsTest, ReportedCardsTest, MediatedTest, FunctionsTest, TwoCellsTest)


def _cloud(number: int, seed: int) -> Callable[[Walking], None]:
    return lambda case: case.walk(f"{seed} {number}")


def _add_tests() -> None:
    """Give each class a test for each of its clouds, of which each is a fork of its own."""
    seed, of = int(os.environ.get(SEED, "0")), int(os.environ.get(CLOUDS, "0"))
    for case in _CASES:
        for number in range(of // len(_CASES) or case.SOME):
            setattr(case, f"test_cloud_{number:04}", _cloud(number, seed))


_add_tests()
