# SPDX-License-Identifier: Apache-2.0
"""A cloud in which all agree is broken in several ways, and what the oracle reads shows each."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator
from typing import Any

from oslo_limit import fixture as limit_fixture

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine
from tests.cloud import oracle, snapshot
from tests.functional import base, strangers

CARD = base.SECOND_SOCKET[0]


class OracleTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_each_kind(self) -> None:
        self.limits = self.useFixture(limit_fixture.LimitFixture({"class:PGPU": 2}, {}))
        server = self.boot(self.gpu_flavor(1))
        self.boot(self.gpu_flavor(1))
        self.assertEqual([], self.differences())
        tracker = self.computes["host1"].manager.rt
        (node,) = tracker.compute_nodes.values()
        (group,) = self.groups().values()
        assigned, guest = tracker.assigned_resources[group], self.guest(server)
        free = tracker.provider_tree.data(group).resources["PGPU"] - assigned["PGPU"]
        without_nodes = re.sub(r"/dev/nvidia\d", "/dev/null", guest._xml)
        bill = snapshot.Bill(True, server["id"], "host1", tuple(self.recorded(server)))
        for kind, broken in (
            ("allocation", self.without_allocation(server, group)),
            ("bill", _set(self.heard, "bills", [*self.heard.bills, bill])),
            ("devices", _set(guest, "_xml", without_nodes)),
            ("domain", self.stranger()),
            ("hold", _item(assigned, "PGPU", assigned["PGPU"] | {next(iter(free))})),
            ("limit", self.lower_limit()),
            ("power", _set(guest, "_state", 5)),  # VIR_DOMAIN_SHUTOFF
            ("task", self.going_on(server)),
            ("text", self.escaped_log()),
            ("tracker", _set(node, "memory_mb_used", node.memory_mb_used + 1)),
        ):
            with self.subTest(kind):
                with broken:
                    self.assertIn(kind, {difference.kind for difference in self.now()})
                self.assertEqual([], self.now())

    def now(self) -> list[oracle.Difference]:
        return oracle.differences(None, oracle.read(self))

    @contextlib.contextmanager
    def without_allocation(self, server: base.Server, group: str) -> Iterator[None]:
        url = f"/allocations/{server['id']}"
        body = self.placement.get(url, version="1.28").body
        part = body["allocations"].pop(group)
        self.assertEqual(204, self.placement.put(url, body, version="1.28").status)
        yield
        body = self.placement.get(url, version="1.28").body
        body["allocations"][group] = {"resources": part["resources"]}
        self.assertEqual(204, self.placement.put(url, body, version="1.28").status)

    @contextlib.contextmanager
    def lower_limit(self) -> Iterator[None]:
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        with _item(self.limits.reglimits, "class:PGPU", 1):
            yield

    @contextlib.contextmanager
    def stranger(self) -> Iterator[None]:
        domain = self.connection().defineXML(strangers.DOMAIN.format(uuid=uuid.uuid4()))
        yield
        domain.undefine()

    @contextlib.contextmanager
    def going_on(self, server: base.Server) -> Iterator[None]:
        for task in ("powering-off", None):
            instance = self.instance(server)
            instance.task_state = task
            instance.save()
            if task:
                yield

    @contextlib.contextmanager
    def escaped_log(self) -> Iterator[None]:
        logging.getLogger("nova_gpu.virt").info("%s", "mine\x1b[2K")
        yield
        self.heard.unprintable.clear()

    def test_what_is_left(self) -> None:
        with self.stranger():
            folder, address = self.state() / "gpu-quarantine", PciAddress.parse(CARD)
            entry = quarantine.Entry(address, None, "it is old", "replace it", "today")
            quarantine.put(folder, entry)
            left = sorted(difference.kind for difference in self.differences())
            self.assertEqual(["domain", "quarantine", "reserved"], left)
            self.assertRaises(AssertionError, self.expect_known, self.differences())
        quarantine.release(folder, address)


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, original)


@contextlib.contextmanager
def _item(owner: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    original, owner[name] = owner[name], value
    yield
    owner[name] = original
