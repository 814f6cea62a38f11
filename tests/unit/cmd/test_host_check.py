# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os

from nova_gpu.cmd import host_check
from nova_gpu.core import exception
from nova_gpu.host.state import quarantine
from nova_gpu.virt.inventory import discovery
from tests.fixtures import hosts, pci, vgpu
from tests.fixtures.bases import commands as base

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class HostCheckTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config.config(state_path=str(self.root / "state"))
        (self.root / "state").mkdir()

    def host(self, *, iommu: bool = True) -> hosts.Host:
        host = hosts.Host(self.root, iommu=iommu)
        (host.roots.sysfs / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
        host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO,))
        return host

    def check(self, status: int, *, as_json: bool = False) -> str:
        host_discovery = discovery.Discovery()
        return self.printed(
            status, lambda: host_check.main(host_discovery, self.root, as_json=as_json)
        )

    def switch(self) -> hosts.Host:
        host = hosts.build("switched-8", self.root)
        (host.roots.sysfs / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
        return host

    def test_ports_without_acs(self) -> None:
        host = self.switch()
        self.assertNotIn("separate", self.check(0))
        host.set_acs("0000:02:01.0", 0x15)
        (text,) = [line for line in self.check(0).splitlines() if "0000:05:00.0 (port" in line]
        self.assertEqual(
            "    the IOMMU does not separate it from 0000:05:00.0 (port 0000:02:01.0 has ACS off "
            "(completion redirect)): one guest at a time gets them, or guests get virtual "
            "functions of one of them; turn ACS on (firmware; no setpci, pci=config_acs= or "
            "disable_acs_redir= against it)",
            text,
        )
        self.config.config(group="gpu", allow_ports_without_acs=True)
        self.assertIn("lets several guests have them", self.check(0))

    def test_functions_below_ports_without_acs(self) -> None:
        host = hosts.Host(self.root)
        host.add_bridge("0000:00:01.0")
        host.add_bridge("0000:01:00.0", parent="0000:00:01.0")
        for port, card in (("0000:02:00.0", "0000:03:00.0"), ("0000:02:01.0", "0000:04:00.0")):
            host.add_bridge(port, parent="0000:01:00.0")
            host.add_gpu(card, "8086", "e211", parent=port, totalvfs=1)
            host.add_vf(card, card.replace(".0", ".1"), driver="vfio-pci")
            host.register_with_vfio(card.replace(".0", ".1"))
        self.assertNotIn("does not separate", self.check(0))
        host.set_acs("0000:02:01.0", None)
        self.assertEqual(2, self.check(0).count("the IOMMU does not separate it from 0000:0"))

    def test_one_group(self) -> None:
        host = self.host()
        host.add_gpu("0000:82:00.0", "10de", "1e04", iommu_group=1)
        self.assertIn(
            f"bound to vfio-pci: {CARD} (nvidia), 0000:82:00.0 (nvidia); bind", self.check(1)
        )
        for address in (CARD, AUDIO, "0000:82:00.0"):
            host.bind(address, "vfio-pci")
        self.assertIn(f"its IOMMU group 1 has {CARD}, too: one guest at a time", self.check(0))

    def test_a_driver_that_is_built_into_the_kernel(self) -> None:
        host = self.host()
        host.bind(AUDIO, "xhci_hcd")
        modules = self.root / "lib/modules" / os.uname().release
        modules.mkdir(parents=True)
        (modules / "modules.builtin").write_text("kernel/drivers/usb/host/xhci-pci.ko\n")
        self.assertIn("host prepare binds it when", self.check(0))
        host.bind(CARD, "vfio-pci")
        shown = self.check(0)
        self.assertIn(f"built into the kernel take {AUDIO} (xhci_hcd) at boot", shown)
        self.assertNotIn("host prepare", shown)

    def test_no_module(self) -> None:
        host = self.host()
        (host.roots.sysfs / "bus/pci/drivers/vfio-pci").rmdir()
        self.assertIn("has no module vfio-pci", self.check(1))
        modules = self.root / "lib/modules" / os.uname().release
        modules.mkdir(parents=True)
        (modules / "modules.dep").write_text("kernel/drivers/vfio/pci/vfio-pci.ko:\n")
        self.assertNotIn("has no module vfio-pci", self.check(0))

    def test_in_use(self) -> None:
        host = self.host()
        sound = host.path(AUDIO) / "sound/card0/controlC0"
        sound.mkdir(parents=True)
        (sound / "dev").write_text("1:3\n")
        process = host.roots.proc / "812"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(b"/usr/bin/pipewire\0")
        (process / "fd/7").symlink_to("/dev/null")
        self.assertIn("in use by /usr/bin/pipewire (pid 812); end that first", self.check(1))
        for address in (CARD, AUDIO):
            host.bind(address, "vfio-pci")
        shown = self.check(0)
        self.assertNotIn("end that first", shown)
        self.assertIn("a guest has it: /usr/bin/pipewire (pid 812)", shown)

    def quarantine(self) -> None:
        """Put the card into quarantine."""
        host_discovery = discovery.Discovery()
        (card,) = host_discovery.find()
        entry = quarantine.entry(card, "it is mute", "replace it")
        quarantine.put(host_discovery.quarantine, entry)

    def test_quarantine(self) -> None:
        self.host()
        self.assertIn(": can be given to a guest\n", self.check(0))
        self.quarantine()
        shown = self.check(1)
        self.assertIn(": cannot be given to a guest\n", shown)
        self.assertRegex(
            shown, "  - it is in quarantine since .*: it is mute; replace it; then run "
        )
        (card,) = json.loads(self.check(1, as_json=True))
        self.assertEqual(1, len(card["obstacles"]), card)
        self.assertEqual([], card["remarks"])

    def test_recent_failure_to_bind(self) -> None:
        self.host()
        discovered = discovery.Discovery()
        (card,) = discovered.find()
        error = exception.BindingFailed(CARD, "its driver hangs", "see the kernel's log")
        quarantine.BindFailures(discovered.deliveries.unbound).add(card, error)
        self.assertIn("its driver hangs; see the kernel's log", self.check(1))

    def test_live_migration_of_vgpus(self) -> None:
        host = hosts.Host(self.root)
        vgpu.add_p4(host, CARD)
        release = host.roots.proc / "1/root/etc/os-release"
        for name, version, is_supported in (
            ("rhel", "9.6", True),
            ("rhel", "9.2", False),
            ("ubuntu", "24.04", True),
            ("ubuntu", "22.04", False),
            ("debian", "13", False),
        ):
            pci.write(release, f'ID={name}\nVERSION_ID="{version}"\nPRETTY_NAME="{name} one"\n')
            self.assertEqual(is_supported, f"this host runs {name} one" not in self.check(0), name)
        release.unlink()
        self.assertNotIn("live migration", self.check(0))

    def test_containers(self) -> None:
        host = self.host(iommu=False)
        self.virt_type("lxc")
        shown = self.check(0)
        self.assertIn("can be given to a guest", shown)
        self.assertNotIn("vfio-pci", shown)
        host.add_gpu("0000:82:00.0", "1002", "74a1", class_code=0x120000)
        host.split("0000:82:00.0", 8, "CPX")
        self.assertEqual(1, self.check(0).count("it is partitioned (CPX): a container gets the"))
        self.assertIn("\nCards: 2; cannot be given to a guest: none\n", self.check(0))
