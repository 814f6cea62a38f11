# SPDX-License-Identifier: Apache-2.0
"""What each release does in its turn, in a process of its own and with its own tree's fixtures.

The file that :data:`CLOUD` names has what the one before left, and gets what this one leaves.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import testtools

from tests.fixtures import daemons, hosts
from tests.functional import base, divided, former, kvm, leftovers, profiled

CLOUD = "NOVA_GPU_CLOUD"
# Has begun where it is stopped, and notes what it has cleaned.
_CLEAN = """
while test -e "$$0.stopped"; do touch "$$0.begun"; sleep 0.1; done
echo "clean $$NOVA_GPU_ADDRESS" >>"$$0"
"""


class Stay(former.FormerTestBase):
    """Guests run on, are rebooted, started and deleted, and what they had goes to others.

    By name: *kept* runs all the time, *stopped* between two releases is, *gone* is deleted by the
    next one. While a card of *dirty* is cleaned, nova-compute ends.
    """

    run_tests_with = testtools.RunTest
    CAST_AS_CALL = False
    RECORDED = pathlib.Path(os.environ.get(CLOUD, os.devnull))
    CAPACITY: int
    IS_CLEANED = True

    def wanted(self) -> str:
        """A flavor with one of what this host has"""
        return self.gpu_flavor(1)

    def assertHas(self, server: base.Server, devices: list[str]) -> None:
        self.assertGPUs(server, devices)

    def left(self) -> Any:
        """What the kernel of the host has of guests, for the next one's :meth:`prepare`"""

    def prepare(self, host: hosts.Host) -> None:
        super().prepare(host)
        for name, text in self.former.get("records", {}).items():
            folder = host.root / "gpu-bindings"
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def tearDown(self) -> None:
        super(leftovers.LeavesNothing, self).tearDown()  # all of it is left, to the next one

    def test(self) -> None:
        self.cleaned, self.stopped, self.begun = (
            self.RECORDED.with_suffix(f".cleaned{suffix}") for suffix in ("", ".stopped", ".begun")
        )
        self.cleaned.write_text(self.former.get("cleaned", ""))
        self.begun.unlink(missing_ok=True)
        command = ["/bin/sh", "-c", _CLEAN, str(self.cleaned)]
        self.useFixture(daemons.Daemons())
        self.flags(clean_command=command, group="gpu")
        early = self.ask_early()
        self.start_host()
        if early:
            self._delete_server(self.checked(self._wait_for_state_change(early, "ACTIVE")))
        self.period()
        if self.former:
            flavor, servers = self.former["flavor"], self.take_over()
        else:
            flavor = self.wanted()
            servers = {name: self.boot_one(flavor) for name in ("kept", "stopped", "gone")}
        self._delete_server(servers.pop("gone"))
        self.period()
        new = [self.boot_one(flavor) for _ in range(self.CAPACITY - len(servers))]
        devices = [resource for server in new for resource in self.recorded(server)]
        self.assertEqual(len(new), len(set(devices)))
        self.boot_refused(flavor)
        servers["gone"], dirty, *others = new
        for server in (*others, *self.api.get_servers(search_opts={"status": "ERROR"})):
            self._delete_server(server)
        self._stop_server(servers["stopped"])
        self.period()
        if self.IS_CLEANED:
            self.stopped.touch()
            self.api.delete_server(dirty["id"])
            self._wait_for_assert(lambda: self.assertTrue(self.begun.exists()))
            self.leave(flavor, servers, dirty["id"])
            self.stopped.unlink()
            self._wait_until_deleted(dirty)
        else:
            self._delete_server(dirty)
            self.leave(flavor, servers, "")

    def ask_early(self) -> base.Server | None:
        """Let this release's scheduler choose the host by what the other release reported."""
        used = len(self.former.get("ids", ())) + bool(self.former.get("dirty"))
        if not self.former or used == self.CAPACITY:
            return None
        request = self._build_server(flavor_id=self.former["flavor"], networks="none")
        server: base.Server = self.api.post_server({"server": request})
        allocations = self._get_allocations_by_server_uuid
        self._wait_for_assert(lambda: self.assertTrue(allocations(server["id"])))
        return server

    def take_over(self) -> dict[str, base.Server]:
        servers = {name: self.api.get_server(uuid) for name, uuid in self.former["ids"].items()}
        devices = self.former["devices"]
        if dirty := self.former["dirty"]:
            self._wait_until_deleted({"id": dirty})
        for _ in range(2):
            for name in ("kept", "gone"):
                self.assertHas(servers[name], devices[name])
                xml = self.defined(servers[name])
                self.assertEqual(self.former["xml"][name], xml, f"{name} was defined again")
            self.assertEqual("SHUTOFF", servers["stopped"]["status"])
            self.period()
        self.assertEqual((), self.judge().differences)
        self._reboot_server(servers["kept"], hard=True)
        self._start_server(servers["stopped"])
        for name in ("kept", "stopped"):
            self.assertHas(servers[name], devices[name])
        return servers

    def defined(self, server: base.Server) -> str:
        """The guest's XML without its number, which each process counts for itself"""
        return re.sub(r" id='\d+'", "", self.guest(server).XMLDesc(0))

    def boot_one(self, flavor: str) -> base.Server:
        return self.checked(self.boot(flavor))

    def checked(self, server: base.Server) -> base.Server:
        """Return *server*, which has one device, cleaned since another one had it."""
        (device,) = devices = self.recorded(server)
        self.assertHas(server, devices)
        if self.IS_CLEANED:
            lines = self.cleaned.read_text().splitlines()
            last = [line for line in lines if line.endswith(f" {device}")][-1]
            self.assertEqual(f"clean {device}", last, lines)
            with self.cleaned.open("a") as file:
                file.write(f"used {device}\n")
        return server

    def leave(self, flavor: str, servers: dict[str, base.Server], dirty: str) -> None:
        host = self.hosts["host1"]
        former.record(
            self,
            self.RECORDED,
            flavor=flavor,
            dirty=dirty,
            cleaned=self.cleaned.read_text() if self.IS_CLEANED else "",
            ids={name: server["id"] for name, server in servers.items()},
            devices={name: self.recorded(server) for name, server in servers.items()},
            xml={name: self.defined(servers[name]) for name in ("kept", "gone")},
            left=self.left(),
            records={file.name: file.read_text() for file in host.root.glob("gpu-bindings/*")},
        )


class Containers(Stay):
    CAPACITY = len(base.ALL)


class Cards(Stay, kvm.KVMServersTestBase):
    """Which the host drives until a guest has them"""

    CAPACITY = len(kvm.ALL)

    def start_host(self, name: str = "host1", machine: str = "cpu-only", **kwargs: Any) -> None:
        super().start_host(name, machine, **kwargs)

    def prepare(self, host: hosts.Host) -> None:
        for address in kvm.ALL:
            kvm.add_pair(host, address)
        for address, drivers in self.former.get("left", {}).items():
            for function, driver in enumerate(drivers):
                host.bind(address.replace(".0", f".{function}"), driver)
        self.kernel("host1", *kvm.HOSTS)
        super().prepare(host)

    def left(self) -> dict[str, list[str | None]]:
        return {address: self.drivers(address) for address in kvm.ALL}


class _VGPUs(Stay):
    IS_CLEANED = False
    CAPACITY = 4

    def assertHas(self, server: base.Server, devices: list[str]) -> None:
        self.assertVGPUs(server, devices)


class Mediated(_VGPUs, divided.DividedServersTestBase):
    def wanted(self) -> str:
        return self.of_type(65)

    def prepare(self, host: hosts.Host) -> None:
        divided.DividedServersTestBase.prepare(self, host)
        kernel = self.kernels["host1"]
        kernel.stop_thread()  # it listens to what there is when it starts
        for address, type_id, uuid in self.former.get("left", ()):
            kernel._make(address, type_id, uuid)
        kernel.start_thread()
        super().prepare(host)

    def left(self) -> list[tuple[str, str, str]]:
        links = self.hosts["host1"].roots.sysfs.glob("bus/mdev/devices/*")
        made = [link.resolve() for link in links]
        return [
            (type_number.parent.name, (type_number / "mdev_type").resolve().name, type_number.name)
            for type_number in made
        ]


class Typed(_VGPUs, profiled.ProfiledServersTestBase):
    def wanted(self) -> str:
        return self.of_type(1155)

    def prepare(self, host: hosts.Host) -> None:
        profiled.ProfiledServersTestBase.prepare(self, host)
        for function, number in self.former.get("left", {}).items():
            path = host.devices / function / "nvidia/current_vgpu_type"
            self.kernels["host1"]._written(str(path), str(number), 5.0)
        super().prepare(host)

    def left(self) -> dict[str, int]:
        return dict(self.kernels["host1"].made)


class Functions(_VGPUs, divided.DividedServersTestBase):
    """Without types"""

    MACHINE = "flex-2"
    CAPACITY = 6

    def wanted(self) -> str:
        return self.flavor(vgpus="= 1", vgpu_type="s== vf")

    def prepare(self, host: hosts.Host) -> None:
        for card in (divided.FIRST, divided.SECOND):
            host.set_autoprobe(card, enabled=False)
        super().prepare(host)

    def assertGuestHas(self, server: base.Server, places: list[Any], host: str) -> None:
        hostdevs = self.domain(server, host).xpath("devices/hostdev[@type='pci']")
        self.assertEqual(
            sorted(str(place.parent) for place in places), sorted(map(kvm.address, hostdevs))
        )
