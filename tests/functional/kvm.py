# SPDX-License-Identifier: Apache-2.0
"""The same cloud with KVM hosts, whose guests get whole cards."""

from __future__ import annotations

import pathlib
from typing import Any

import fixtures
from nova.virt.libvirt import utils as libvirt_utils

from nova_gpu.conf import CONF
from nova_gpu.core import model
from nova_gpu.host.vfio import binding
from tests.fixtures import daemons, hosts, kernel, libvirt, pci
from tests.functional import base
from tests.functional.base import Server

FIRST_SOCKET = ("0000:3b:00.0", "0000:5e:00.0")
SECOND_SOCKET = ("0000:af:00.0", "0000:d8:00.0")
ALL = FIRST_SOCKET + SECOND_SOCKET

# Two cards that the host drives until a guest needs them, and what drives their functions then
CARD, OTHER = FIRST_SOCKET
HOSTS, GUESTS = ["nouveau", "snd_hda_intel"], ["vfio-pci", "vfio-pci"]

_DRIVERS = ("intel_vpu", "nvidia", "nouveau", "amdgpu", "i915", "xe", "snd_hda_intel")


class KVMServersTestBase(base.GPUServersTestBase):
    """Privileged functions run in this process, over the generated tree of the host that calls."""

    TOTAL = len(ALL)

    def _setup_hypervisor(self) -> None:
        self.useFixture(libvirt.QEMUFixture())
        self.useFixture(daemons.Daemons())
        self.flags(virt_type="kvm", hw_machine_type=["x86_64=q35"], group="libvirt")

    def start_host(self, name: str = "host1", machine: str = "pairs-4", **kwargs: Any) -> None:
        super().start_host(name, machine, **kwargs)

    def start_driving_host(self, name: str = "host1") -> kernel.Kernel:
        """One that drives :data:`CARD` and :data:`OTHER`; what does so is returned."""
        self.start_host(name, machine="cpu-only")
        for address in (CARD, OTHER):
            add_pair(self.hosts[name], address)
        stand_in = self.kernel(name, *HOSTS)
        self.period(name)
        stand_in.done.clear()  # of their first cleaning
        return stand_in

    def setUp(self) -> None:
        self._kernels: dict[hosts.Host, kernel.Kernel] = {}
        super().setUp()
        # A driver of these trees is there at once, or never.
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.vfio.binding._SETTLE_S", 0.5))

    def _point_options_at(self, name: str) -> None:
        super()._point_options_at(name)
        links = self.hosts[name].devices.glob("*/driver")  # none where a test took sysfs away
        bound = {link.resolve().name for link in links if link.is_symlink()}
        if bound & set(_DRIVERS):
            # Each card is cleaned when the service finds it, and bound for that.
            self.kernel(name, *_DRIVERS)

    def kernel(self, name: str, *drivers: str) -> kernel.Kernel:
        """Somebody who does what is written to the drivers' files on that host."""
        host = self.hosts[name]
        if host not in self._kernels:
            self._kernels[host] = self.useFixture(kernel.Kernel(host, ("vfio-pci", *drivers)))
        return self._kernels[host]

    def rescue(self, server: Server) -> None:
        folder = libvirt_utils.get_instance_path(self.instance(server))
        pathlib.Path(folder).mkdir(exist_ok=True)
        self.perform(server, "rescue", "RESCUE", {"rescue_image_ref": base.IMAGE})

    def rendered(self, server: Server, host: str = "host1") -> list[str]:
        """The cards the domain names, each with all its functions behind a port of its own."""
        domain = self.domain(server, host)
        by_port: dict[str, list[str]] = {}
        for hostdev in domain.findall("devices/hostdev[@type='pci']"):
            if (place := hostdev.find("address")) is not None:
                by_port.setdefault(place.get("bus"), []).append(address(hostdev))
        own = [int(port, 16) for port in by_port]
        if self.expanders(server, host):
            taken = domain.xpath("devices/controller[@type='pci'][address]/@index")
            self.assertLessEqual(set(own), {int(index) for index in taken})
        else:
            ports = domain.xpath("devices/controller[@model='pcie-root-port']/@index")
            self.assertEqual(list(range(1, len(own) + 1)), own)
            defined = own if CONF.libvirt.num_pcie_ports else []
            self.assertEqual(defined, [int(port) for port in ports])
        for functions in by_port.values():
            self.assertEqual(self._functions(host, functions[0]), functions)
        return sorted(functions[0] for functions in by_port.values())

    def by_alias(self, server: Server, host: str = "host1") -> list[str]:
        """The buses of the devices that the guest has of Nova's own passthrough"""
        domain = self.domain(server, host)
        return sorted(domain.xpath("devices/hostdev[not(address)]/source/address/@bus"))

    def expanders(self, server: Server, host: str = "host1") -> list[str | None]:
        """The guest's NUMA cell of each expander in its domain"""
        controllers = self.domain(server, host).xpath(
            "devices/controller[@model='pcie-expander-bus']"
        )
        return [controller.findtext("target/node") for controller in controllers]

    def _functions(self, host: str, address: str) -> list[str]:
        slot = address.rpartition(".")[0]
        return sorted(path.name for path in self.hosts[host].devices.glob(f"{slot}.*"))

    def drivers(self, address: str, host: str = "host1") -> list[str | None]:
        """What drives the functions of a card"""
        links = [
            self.hosts[host].path(function) / "driver"
            for function in self._functions(host, address)
        ]
        return [link.resolve().name if link.is_symlink() else None for link in links]

    def former(self, host: str = "host1") -> list[str]:
        """The cards of which it is written down what drove them before a guest had them"""
        folder = daemons.records(self.hosts[host].roots)
        return sorted(map(str, binding.recorded(folder)))


def address(hostdev: Any) -> str:
    """Of what the domain names"""
    source = hostdev.find("source/address")
    parts = [int(source.get(part), 16) for part in ("domain", "bus", "slot", "function")]
    return str(model.PciAddress(*parts))


def add_pair(host: hosts.Host, address: str) -> None:
    """A two-function card that the host drives, its audio function too"""
    host.add_gpu(address, "10de", "25b6", driver="nouveau", companions=[pci.AUDIO])
    host.bind(address.replace(".0", ".1"), "snd_hda_intel")
