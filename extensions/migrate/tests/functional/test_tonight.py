# SPDX-License-Identifier: Apache-2.0
"""What the page has an operator type is typed on one of three hosts of stock Nova."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
from typing import Any
from unittest import mock

from nova_gpu.cmd import arguments, services, waiting
from nova_gpu_migrate.cmd import shadow
from tests.cloud import databases, takeover
from tests.functional import NOVA, aliases, dump, stock

# They read the host as the tests do anyhow.
_OF_ALL_HOSTS = ("list", "verify")


class TonightTest(takeover.Typing, stock.StockTestBase):
    HOSTS = ("host1", "host2", "host3")

    def setUp(self) -> None:
        if NOVA < 34:
            self.skipTest("Nova before 2026.2 runs on eventlet, and no test sees when it is idle")
        self.drivers = dict.fromkeys(self.HOSTS, stock.STOCK)
        super().setUp()
        self.flags(report_interval=0, shelved_offload_time=0)

    def take_driver(self, driver: str = stock.OURS) -> None:
        self.drivers = dict.fromkeys(self.HOSTS, driver)
        super().take_driver(driver)

    def restart_host(self, name: str) -> None:
        self._choose(self.drivers[name])
        super().restart_host(name)
        # Stock Nova has read its options; nova-gpu reads them again.
        self._choose(stock.OURS if stock.OURS in self.drivers.values() else stock.STOCK)

    def _choose(self, driver: str) -> None:
        self.flags(compute_driver=driver)
        self.device_spec(*((aliases.ALL_A2,) if driver == stock.STOCK else ()))

    # What is typed

    def stop(self, host: str) -> None:
        self.computes[host].stop()

    def start(self, host: str) -> None:
        self.restart_host(host)
        self.period(host)

    def guests(self, host: str) -> Any:
        return {domain.UUIDString(): domain.XMLDesc(0) for domain in self._domains(host)}

    def command(self, host: str, *words: str) -> tuple[int, str]:
        if words[0] in _OF_ALL_HOSTS:
            differences = self.judge(host).differences
            return len(differences), "\n".join(map(str, differences))
        parser = argparse.ArgumentParser()
        arguments.add_commands(parser.add_subparsers())
        command = parser.parse_args(words)
        self._choose(self.drivers[host])
        libvirt, output = self.computes[host].driver._host, io.StringIO()
        with (
            self.reading(host) as sources,
            mock.patch.object(shadow, "sources", lambda line: sources),
            mock.patch.object(services, "libvirt", lambda **kwargs: libvirt),
            mock.patch.object(waiting, "shown", lambda text: contextlib.nullcontext()),
            contextlib.redirect_stdout(output),
        ):
            status = importlib.import_module(command.module).run(command, ["nova-gpu", *words])
        return status, output.getvalue()

    def test_one_of_three_hosts(self) -> None:
        """The others' instances notice nothing, and none of any host moves without its card."""
        words = {"pci_passthrough:alias": "a2:1"}
        servers = {
            host: self.boot(self.flavor(**words), host=host, api=self.admin_api)
            for host in self.HOSTS
        }
        had = {host: self.has(server, host) for host, server in servers.items()}
        for host in self.HOSTS:  # Nova then has no pools any more of which all is taken
            self.stop(host)
            self.start(host)
        tonight, tomorrow = takeover.commands("Try it tonight")
        own = servers["host1"]
        before = dump.dump(self)
        self.type("host1", tonight)
        self.assertEqual(had["host1"], self.recorded(own))
        self.assertEqual([], databases.differences(before, dump.dump(self), stock.MEANWHILE))
        self.type("host1", tomorrow)
        self.assertEqual([], databases.differences(before, dump.dump(self), stock.REMAINS))
        self.type("host1", tonight)

        self.assertIn("No valid host", "\n".join(self.refused({"migrate": None}, own)))
        self.assertEqual(("host1", had["host1"]), (self.host_of(own), self.has(own)))
        self._shelve_server(own, expected_state="SHELVED_OFFLOADED")
        self.perform(own, "unshelve", "ACTIVE")
        self.assertGPUs(own, self.recorded(own))
        another = self.boot_by_alias()
        self.assertIn(self.host_of(another), ("host2", "host3"))
        self.assertEqual(1, len(self.has(another, self.host_of(another))))
        moved = servers["host2"]
        self._migrate_server(moved)
        self._wait_for_state_change(moved, "VERIFY_RESIZE")
        self.assertEqual("host3", self.host_of(moved))
        self.assertEqual(1, len(self.has(moved, "host3")))
        self._revert_resize(moved)

        self.type("host1", tomorrow)
        for server in (*servers.values(), another):
            host = self.host_of(server)
            self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
            self.assertEqual(self.rows(server), self.has(server, host))
            self.assertEqual(1, len(self.has(server, host)))
