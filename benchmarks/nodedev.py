# SPDX-License-Identifier: Apache-2.0
"""Nova's own PCI listing of a generated host, over a libvirt that answers at once.

Nova does not read sysfs: it asks libvirt for its node devices and parses each one's XML. Here the
XML is made beforehand from the generated tree, in libvirt's form, so what remains is Nova's part.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

# Threads or eventlet, as nova-compute of this release has it
import nova.cmd.compute  # noqa: F401
from nova.virt.libvirt import driver, host

from nova_gpu.core.model import PciAddress

# What Nova's listing needs of libvirt's bindings; these flags choose nothing here.
_BINDINGS = SimpleNamespace(
    VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET=1 << 4,
    VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV=1 << 1,
    VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA=1 << 17,
    libvirtError=OSError,
)


class NodeDevice:
    """As much of virNodeDevice as Nova's listing asks for."""

    def __init__(self, device: pathlib.Path) -> None:
        self._name = _name(device.name)
        self._xml = _xml(device)

    def name(self) -> str:
        return self._name

    def parent(self) -> str:
        return "computer"

    def listCaps(self) -> list[str]:
        return ["pci"]

    def XMLDesc(self, flags: int) -> str:
        return self._xml


class Host(host.Host):  # type: ignore[misc,unused-ignore]
    """Nova's, with a connection to a list of devices"""

    def __init__(self, devices: Sequence[NodeDevice]) -> None:
        self._connection = SimpleNamespace(listAllDevices=lambda flags: devices)

    def get_connection(self) -> Any:
        return self._connection

    def _wrap_libvirt_proxy(self, obj: Any) -> Any:
        return obj  # without a proxy, as on native threads


def listing(devices: pathlib.Path) -> Callable[[], list[dict[str, Any]]]:
    """What Nova does to list the functions below the folder *devices*, to be called again and
    again; it is Nova's function without the cache around it."""
    driver.libvirt = host.libvirt = _BINDINGS
    nodes = [NodeDevice(path.resolve()) for path in sorted(devices.iterdir())]
    own = SimpleNamespace(_host=Host(nodes))
    uncached = driver.LibvirtDriver._get_pci_passthrough_devices.__wrapped__
    return lambda: json.loads(uncached(own))


def _name(address: str) -> str:
    return "pci_" + address.replace(":", "_").replace(".", "_")


def _xml(device: pathlib.Path) -> str:
    def text(name: str) -> str:
        return (device / name).read_text().strip()

    at = PciAddress.parse(device.name)
    capability = ""
    virtual = sorted(device.glob("virtfn*"))
    if virtual:
        capability = _functions("virt_functions", [link.resolve().name for link in virtual])
    elif (device / "physfn").exists():
        capability = _functions("phys_function", [(device / "physfn").resolve().name])
    group = (device / "iommu_group").resolve().name
    return f"""
<device>
  <name>{_name(device.name)}</name>
  <path>{device}</path>
  <parent>computer</parent>
  <driver><name>{(device / "driver").resolve().name}</name></driver>
  <capability type='pci'>
    <class>{text("class")}</class>
    <domain>{at.domain}</domain>
    <bus>{at.bus}</bus>
    <slot>{at.slot}</slot>
    <function>{at.function}</function>
    <product id='{text("device")}'/>
    <vendor id='{text("vendor")}'/>
    {capability}
    <iommuGroup number='{group}'>{_address(device.name)}</iommuGroup>
    <numa node='{text("numa_node")}'/>
    <pci-express>
      <link validity='cap' port='0' speed='32' width='16'/>
      <link validity='sta' speed='32' width='16'/>
    </pci-express>
  </capability>
</device>"""


def _functions(kind: str, addresses: Sequence[str]) -> str:
    return f"<capability type='{kind}'>{''.join(map(_address, addresses))}</capability>"


def _address(address: str) -> str:
    at = PciAddress.parse(address)
    return (
        f"<address domain='{at.domain:#06x}' bus='{at.bus:#04x}' slot='{at.slot:#04x}' "
        f"function='{at.function:#x}'/>"
    )
