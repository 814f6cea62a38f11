# SPDX-License-Identifier: Apache-2.0
"""A cloud in which all agree is broken in several ways, and what the oracle reads shows each."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from oslo_limit import fixture as limit_fixture

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine
from tests.cloud import oracle, snapshot
from tests.functional import base, strangers

_ESCAPE = "mine\x1b[2K"
CARD = base.SECOND_SOCKET[0]

Break = Callable[[], contextlib.AbstractContextManager[object]]


class OracleTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_each_kind(self) -> None:
        self.limits = self.useFixture(limit_fixture.LimitFixture({"class:PGPU": 2}, {}))
        self.server = self.boot(self.gpu_flavor(1))
        self.boot(self.gpu_flavor(1))
        self.assertEqual([], self.differences())
        broken: dict[str, Break] = {
            "allocation": self.without_allocation,
            "bill": self.claimed_again,
            "devices": self.without_nodes,
            "domain": self.stranger,
            "hold": self.kept_by_the_tracker,
            "limit": self.lower_limit,
            "power": self.ended_guest,
            "task": self.going_on,
            "text": self.escaped_log,
            "tracker": self.more_memory,
        }
        unseen = {}
        for kind, break_it in broken.items():
            with break_it():
                seen = self.now()
            left = self.now()
            if left or kind not in {each.kind for each in seen}:
                unseen[break_it.__name__] = (seen, left)
        self.assertEqual({}, unseen)

    def now(self) -> list[oracle.Difference]:
        return oracle.differences(None, oracle.read(self))

    # Placement

    @contextlib.contextmanager
    def allocated_so(self, change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        url = f"/allocations/{self.server['id']}"
        kept = self.placement.get(url, version="1.28").body
        body = self.placement.get(url, version="1.28").body
        change(body)
        self.put(url, body)
        yield
        kept["consumer_generation"] = self.placement.get(url, version="1.28").body[
            "consumer_generation"
        ]
        self.put(url, kept)

    def put(self, url: str, body: dict[str, Any]) -> None:
        answer = self.placement.put(url, body, version="1.28")
        self.assertLess(answer.status, 300, answer.body)

    def without_allocation(self) -> contextlib.AbstractContextManager[object]:
        (group,) = self.groups().values()
        return self.allocated_so(lambda body: body["allocations"].pop(group))

    # libvirt

    @contextlib.contextmanager
    def stranger(self) -> Iterator[None]:
        domain = self.connection().defineXML(strangers.DOMAIN.format(uuid=uuid.uuid4()))
        yield
        domain.undefine()

    @contextlib.contextmanager
    def without_nodes(self) -> Iterator[None]:
        domain = self.guest(self.server)
        kept = domain._xml
        domain._xml = re.sub(r"/dev/nvidia\d", "/dev/null", kept)
        yield
        domain._xml = kept

    @contextlib.contextmanager
    def ended_guest(self) -> Iterator[None]:
        domain = self.guest(self.server)
        kept, domain._state = domain._state, 5  # VIR_DOMAIN_SHUTOFF
        yield
        domain._state = kept

    # Nova's database

    @contextlib.contextmanager
    def written(self, **values: Any) -> Iterator[None]:
        instance = self.instance(self.server)
        kept = {name: getattr(instance, name) for name in values}
        for changes in (values, kept):
            instance = self.instance(self.server)
            for name, value in changes.items():
                setattr(instance, name, value)
            instance.save()
            if changes is values:
                yield

    def going_on(self) -> contextlib.AbstractContextManager[object]:
        return self.written(task_state="powering-off")

    # The tracker and the manager

    @property
    def tracker(self) -> Any:
        return self.computes["host1"].manager.rt

    @contextlib.contextmanager
    def more_memory(self) -> Iterator[None]:
        (node,) = self.tracker.compute_nodes.values()
        node.memory_mb_used += 1
        yield
        node.memory_mb_used -= 1

    @contextlib.contextmanager
    def assigned_so(self, change: Callable[[set[Any]], set[Any]]) -> Iterator[None]:
        (group,) = self.groups().values()
        assigned = self.tracker.assigned_resources[group]
        kept = assigned["PGPU"]
        assigned["PGPU"] = change(kept)
        yield
        assigned["PGPU"] = kept

    def kept_by_the_tracker(self) -> contextlib.AbstractContextManager[object]:
        (group,) = self.groups().values()
        return self.assigned_so(
            lambda kept: (
                kept | {next(iter(self.tracker.provider_tree.data(group).resources["PGPU"] - kept))}
            )
        )

    # What is said

    @contextlib.contextmanager
    def escaped_log(self) -> Iterator[None]:
        logging.getLogger("nova_gpu.virt").info("%s", _ESCAPE)
        yield
        self.heard.unprintable.clear()

    @contextlib.contextmanager
    def claimed_again(self) -> Iterator[None]:
        addresses = tuple(self.recorded(self.server))
        bill = snapshot.Bill(True, self.server["id"], "host1", addresses)
        self.heard.bills.append(bill)
        yield
        self.heard.bills.remove(bill)

    @contextlib.contextmanager
    def lower_limit(self) -> Iterator[None]:
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.limits.reglimits["class:PGPU"] = 1
        yield
        self.limits.reglimits["class:PGPU"] = 2


class LeftTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_what_is_left(self) -> None:
        self.assertEqual([], self.differences())
        domain = self.connection().defineXML(strangers.DOMAIN.format(uuid=uuid.uuid4()))
        folder, address = self.state() / "gpu-quarantine", PciAddress.parse(CARD)
        quarantine.put(folder, quarantine.Entry(address, None, "it is old", "replace it", "today"))
        left = sorted(each.kind for each in self.differences())
        self.assertEqual(["domain", "quarantine", "reserved"], left)
        self.assertRaises(AssertionError, self.expect_known, self.differences())
        domain.undefine()
        quarantine.release(folder, address)
