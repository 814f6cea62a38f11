# SPDX-License-Identifier: Apache-2.0
"""Domains that have GPUs without Nova's counting them."""

from __future__ import annotations

import subprocess
import sys
import uuid

from nova import exception as nova_exception
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import hosts
from tests.functional import alone, base, strangers


class ForeignDomainTest(alone.Alone, base.GPUServersTestBase):
    leaves = dict.fromkeys(("domain", "hold", "reserved"), "it is not Nova's to end")
    HOSTS = ("host1",)

    def assertNobodyGetsIt(self) -> None:
        self.assertInventory(reserved=1)
        self.boot_refused(self.gpu_flavor(8))
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.assertInventory(reserved=1, used=7)

    def _somebody(self, connection: fakelibvirt.Connection) -> fakelibvirt.Domain:
        return connection.defineXML(strangers.DOMAIN.format(uuid=uuid.uuid4()))

    def test_from_the_first_provider_tree_on(self) -> None:
        """Nova refuses a host that is new to it and has domains; so this one comes back."""
        self._somebody(self.connection())  # whether it runs or not
        self.restart_host("host1")
        self.assertNobodyGetsIt()

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


_HOLDS = """
import pathlib, sys
from nova_gpu.host import roots, service_socket
assert service_socket.claim(roots.Roots(sysfs=pathlib.Path(sys.argv[1]))) is None
print(flush=True)
input()
"""


class SecondServiceTest(alone.Alone, base.GPUServersTestBase):
    """Another nova-compute gives the same cards, by whatever name and state path."""

    def prepare(self, host: hosts.Host) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _HOLDS, str(host.roots.sysfs)]
        self.other = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        self.addCleanup(self.other.communicate)
        self.addCleanup(self.other.kill)
        assert self.other.stdout
        self.other.stdout.readline()

    def test_it_is_refused(self) -> None:
        said = self.assertRaises(nova_exception.InvalidConfiguration, self.start_host)
        self.assertIn(f"another nova-compute (pid {self.other.pid}) already gives", str(said))
        self.other.kill()
        self.other.wait()
        with self._state_of("host1"):
            self.start_compute("host1")
        self.assertGPUs(self.boot(self.gpu_flavor(1)), base.ALL[:1])
