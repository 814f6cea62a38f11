# SPDX-License-Identifier: Apache-2.0
"""An instance without GPUs never fails because of a GPU, whatever state a host's GPUs are in."""

from __future__ import annotations

import shutil
import uuid
from typing import Any
from unittest import mock

from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_messaging import exceptions as messaging_exceptions

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine
from tests.fixtures import ailments
from tests.functional import alone, base, strangers


class PlainInstancesTest(alone.Alone, base.GPUServersTestBase):
    """One instance with a GPU, and the states that its GPU and all others get into."""

    leaves = dict.fromkeys(
        ("devices", "domain", "hold", "inventory", "lost", "quarantine", "reserved"),
        "none of the states is mended",
    )
    # minors 0 to 3 are the second socket's
    STRANGER = strangers.DOMAIN.format(uuid=uuid.uuid4()).replace("/dev/nvidia4", "/dev/nvidia0")

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.gpus_owner = self.boot(self.gpu_flavor(1))
        self.old = self.boot(self.flavor())

    def assertPlainInstancesWork(self) -> None:
        self.period()
        new = self.boot(self.flavor())
        for server in (self.old, new):
            self._reboot_server(server, hard=True)
            self.assertGPUs(server, [])
        self._delete_server(new)
        self.assertRaises(fakelibvirt.libvirtError, self.domain, new)
        self.period()

    def device(self, address: str, name: str) -> Any:
        return self.hosts["host1"].path(address) / name

    # The states: with each of them plain instances work.

    def a_card_gone(self) -> None:
        for address in (base.ALL[0], base.ALL[1]):
            self.hosts["host1"].remove(address)

    def another_product_in_its_place(self) -> None:
        self.hosts["host1"].add_gpu(base.ALL[0], "10de", "1023", numa_node=0, minor=40)

    def garbage_in_sysfs(self) -> None:
        self.device(base.ALL[2], "vendor").write_bytes(b"\xff\xfegarbage")
        self.device(base.ALL[3], "numa_node").write_text("")
        self.device(base.ALL[3], "resource").unlink()

    def a_stranger(self) -> None:
        self.connection().defineXML(self.STRANGER).create()

    def a_cdi_file_of_garbage(self) -> None:
        for folder in self.hosts["host1"].roots.cdi_spec_dirs:
            (folder / "nvidia.json").write_text('{"cdiVersion": ')

    def quarantined(self) -> None:
        for address in map(PciAddress.parse, base.ALL):
            entry = quarantine.Entry(address, None, "it is broken", "mend it", "2026-01-01T00:00Z")
            quarantine.put(self.state() / "gpu-quarantine", entry)

    def quarantine_unreadable(self) -> None:
        shutil.rmtree(self.state() / "gpu-quarantine")
        (self.state() / "gpu-quarantine").write_text("this should be a folder")

    def no_sysfs(self) -> None:
        devices = self.hosts["host1"].devices
        devices.rename(devices.with_name("away"))

    def cards_that_fall_ill(self) -> None:
        host = self.hosts["host1"]
        ailments.silence(host, base.ALL[2])
        ailments.count_bus_errors(host, base.ALL[3])
        self.period()
        ailments.count_bus_errors(host, base.ALL[3], fatal=1)

    STATES = (
        a_card_gone,
        another_product_in_its_place,
        cards_that_fall_ill,
        garbage_in_sysfs,
        a_stranger,
        a_cdi_file_of_garbage,
        quarantined,
        quarantine_unreadable,
    )

    def test_in_one_bad_state_after_another(self) -> None:
        """None is mended: at the end there are all of them, for a new service too."""
        for state in self.STATES:
            with self.subTest(state=state.__name__):
                state(self)
                self.assertPlainInstancesWork()
        # Without sysfs nothing else is looked at.
        self.restart_host("host1")
        self.assertPlainInstancesWork()
        self.no_sysfs()
        self.assertPlainInstancesWork()
        self.restart_host("host1")
        self.assertPlainInstancesWork()

    def test_while_something_does_not_answer(self) -> None:
        free = self._free()
        self.assertEqual(len(base.ALL) - 1, free)
        bug = RuntimeError("what nobody thought of")
        for name, broken in (
            (
                "nova_gpu.virt.usage.records.read",
                messaging_exceptions.MessagingTimeout("nobody answers"),
            ),
            (
                "nova_gpu.virt.usage.domains.look",
                exception.DomainsUnreadable("no libvirt"),
            ),
            ("nova_gpu.host.pci.discovery.discover", exception.DiscoveryFailed("/sys", "it hangs")),
            ("nova_gpu.virt.health.monitor.Watch.look", bug),
            ("nova_gpu.virt.inventory.card_inventory.CardInventory.publish", bug),
            ("nova_gpu.virt.usage.reader.UsageReader.read_records", bug),
            ("nova_gpu.virt.lifecycle.releases.Releases.resume", bug),
        ):
            with self.subTest(name), mock.patch(name, side_effect=broken):
                self.assertPlainInstancesWork()
                self.restart_host("host1")  # it did not answer from the start, then
                self.assertPlainInstancesWork()
                if broken is bug and not name.endswith(".publish"):
                    self.assertEqual(0, self._free())
            self.period()
            self.assertEqual(free, self._free(), name)

    def _free(self) -> int:
        return self.computes["host1"].driver._gpus.publication.free()
