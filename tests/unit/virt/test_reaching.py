# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import fixtures
import libvirt
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel as uuids
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.virt import periodic, reporter
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.usage.records import Records
from tests.fixtures.histories import Domain, Libvirt

OWN, OTHER = map(PciAddress.parse, ("0000:3b:00.0", "0000:af:00.0"))
_XML = "<domain ><uuid>{}</uuid><metadata></metadata></domain>"


class Guest(Domain):
    ends = True
    error = ""

    def poweroff(self) -> None:
        if self.ends:
            self.end()
        if self.error:
            raise libvirt.libvirtError(self.error)


class ReachingTest(base.BaseTestCase):
    """A guest that can open another card than its own"""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu", format="%(message)s"))
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.guest = Guest(uuids.guest, _XML.format(uuids.guest))
        self.host = Libvirt()
        self.host.domains[uuids.guest] = self.guest
        self.ledger = Ledger()
        named, reached = frozenset({OWN, OTHER}), frozenset({OTHER})
        self.ledger.saw_domains({uuids.guest: named}, {uuids.guest: reached})
        usage = UsageReader(self.host, self.ledger, lambda: None)
        self.useFixture(fixtures.MockPatchObject(usage, "look_again"))
        self.parts = self.host, self.ledger, usage, reporter.Reporter()

    def read(self, **facts: frozenset[str]) -> None:
        """Have the database answer."""
        counted = {uuids.guest: frozenset({(uuids.provider, str(OWN))})}
        self.ledger.read_records(lambda _: Records(counted, **facts))

    def settle(self) -> bool:
        """Whether the guest runs on"""
        periodic.settle_reached(*self.parts)
        return self.guest.running

    def test_it_is_stopped_where_the_operator_wants_it(self) -> None:
        """Else it is noted, and goes on."""
        self.read()
        self.assertTrue(self.settle())
        self.assertIn(str(OTHER), self.guest.noted)
        self.assertNotIn(str(OWN), self.guest.noted)
        self.config(group="gpu", stop_guests_that_reach_others=True)
        self.read(busy=frozenset({uuids.guest}))
        self.assertTrue(self.settle())
        self.ledger._now = dataclasses.replace(self.ledger.now, records=None)
        self.assertTrue(self.settle())  # the database has not said yet whose it is
        self.read()
        self.assertFalse(self.settle())
        self.assertIn(f"Stopped the guest {uuids.guest}, which reached", self.log.output)

    def test_libvirts_answer_is_lost(self) -> None:
        """It is stopped where it has ended, whatever libvirt said."""
        self.config(group="gpu", stop_guests_that_reach_others=True)
        self.read()
        self.guest.error = "connection lost"
        self.guest.ends = False
        self.assertTrue(self.settle())
        self.assertIn(f"Failed to stop the guest {uuids.guest}", self.log.output)
        self.assertNotIn("Stopped the guest", self.log.output)
        self.guest.ends = True
        self.assertFalse(self.settle())
        self.assertIn(f"Stopped the guest {uuids.guest}", self.log.output)
