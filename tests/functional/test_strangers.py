# SPDX-License-Identifier: Apache-2.0
"""Domains that have GPUs without Nova's counting them."""

from __future__ import annotations

import uuid

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base, strangers


class ForeignDomainTest(base.GPUServersTestBase):
    leaves = dict.fromkeys(("domain", "hold", "reserved"), "it is not Nova's to end")
    HOSTS = ("host1",)

    def _somebody(self, connection: fakelibvirt.Connection) -> fakelibvirt.Domain:
        return connection.defineXML(strangers.DOMAIN.format(uuid=uuid.uuid4()))

    def test_from_the_first_provider_tree_on(self) -> None:
        """Nova refuses a host that is new to it and has domains; so this one comes back."""
        self._somebody(self.connection())  # whether it runs or not
        self.restart_host("host1")
        self.assertInventory(reserved=1)
        self.boot_refused(self.gpu_flavor(8))
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.assertInventory(reserved=1, used=7)

    def test_before_the_period_has_seen_it(self) -> None:
        """The claim takes the card; the hold sees who has it, and another host is tried."""
        self.start_host("host2")
        for host in ("host1", "host2"):
            self._somebody(self.connection(host))
        self.boot_refused(self.gpu_flavor(8))
        domain = self.connection("host2")
        domain.listAllDomains(fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)[0].undefine()
        self.period("host2")
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL, "host2")
        self.assertInventory(used=0, reserved=1, host="host1")
