# SPDX-License-Identifier: Apache-2.0
"""The VM's own view of its PCI functions, read without the code under test."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import nova_gpu.privsep.vfio
from lab.vm import modules
from nova_gpu.cmd import cards, topology
from nova_gpu.cmd import quarantine as release_command
from nova_gpu.host.state import quarantine
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt.inventory import discovery
from tests.vfio import place

# Of function 0 and 1 of a card that the host has, and of one that guests may have
HOST_DRIVERS = ["bochs-drm", "snd_hda_intel"]
VFIO_DRIVERS = ["vfio-pci", "vfio-pci"]
_DEVICES = pathlib.Path("/sys/bus/pci/devices")
_QEMU_OPTIONS = pathlib.Path("/run/lab/qemu-options")
# include/uapi/linux/vfio.h
_SET_IOMMU = 0x3B66
_GROUP_SET_CONTAINER = 0x3B68
_GROUP_GET_DEVICE_FD = 0x3B6A
_TYPE1 = 1

# An RTX 6000 Ada, whose types modules.FUNCTIONS has, and NVIDIA's driver
_NVIDIAS = {"class": "0x030200", "vendor": "0x10de", "device": "0x26b1"}
_NVIDIA = "nvidia"
_PARAMETERS = pathlib.Path("/sys/module", modules.FUNCTIONS.stem, "parameters")
_SRIOV_MANAGE = pathlib.Path("/run/lab/sriov-manage.sh")


def functions(card: str) -> list[str]:
    """The functions in the slot of *card*."""
    slot = card.rpartition(".")[0]
    return sorted(path.name for path in _DEVICES.glob(f"{slot}.*"))


def driver(address: str) -> str | None:
    link = _DEVICES / address / "driver"
    return os.path.basename(os.readlink(link)) if link.exists() else None


def drivers(*cards: str) -> list[str | None]:
    """Of all functions of those cards."""
    return [driver(function) for card in cards for function in functions(card)]


def overrides(card: str) -> list[str | None]:
    """What alone may drive each of the card's functions; ``None``: any driver that knows it."""
    texts = [(_DEVICES / function / "driver_override").read_text() for function in functions(card)]
    return [None if text.strip() in ("", "(null)") else text.strip() for text in texts]


def group(address: str) -> int:
    return int(os.path.basename(os.readlink(_DEVICES / address / "iommu_group")))


def open_groups() -> list[str]:
    """The groups that vfio has, by the names of their nodes."""
    return sorted(path.name for path in pathlib.Path("/dev/vfio").iterdir() if path.name != "vfio")


def unbind(address: str) -> None:
    (_DEVICES / address / "driver" / "unbind").write_text(address)


def override_by(address: str, driver: str) -> None:
    """No name: none but the drivers that know the device."""
    (_DEVICES / address / "driver_override").write_text(f"{driver}\n")


def probe(address: str) -> None:
    (_DEVICES.parent / "drivers_probe").write_text(address)


def bind(address: str, driver: str) -> None:
    """Takes the function from its driver for *driver*; no name: for one that knows the device."""
    unbind(address)
    override_by(address, driver)
    probe(address)


def remove(address: str) -> None:
    """Takes the function off the bus, which the kernel does when nobody has it any more."""
    subprocess.Popen(["sh", "-c", 'echo 1 >"$0"', str(_DEVICES / address / "remove")])


def rescan() -> None:
    (_DEVICES.parent / "rescan").write_text("1")


def pretend(address: str, attributes: Mapping[str, str]) -> None:
    """What the function's files in sysfs say from now on, for whoever reads them."""
    for name, text in attributes.items():
        file = pathlib.Path(tempfile.mkdtemp()) / name
        file.write_text(f"{text}\n")
        mount = ["mount", "--bind", str(file), str(_DEVICES / address / name)]
        subprocess.run(mount, check=True)


def own_up(address: str, attributes: Iterable[str]) -> None:
    """Ends :func:`pretend`."""
    for name in attributes:
        subprocess.run(["umount", str(_DEVICES / address / name)], check=True)


def parts(address: str) -> list[str]:
    """The virtual functions of the function"""
    links = (_DEVICES / address).glob("virtfn*")
    return sorted(os.path.basename(os.readlink(link)) for link in links)


def without_parts(address: str) -> None:
    (_DEVICES / address / "sriov_numvfs").write_text("0")
    (_DEVICES / address / "sriov_drivers_autoprobe").write_text("1")


def become_nvidias(address: str, *options: str) -> None:
    """Until :func:`be_own_again`. *options*: of the module that is its driver"""
    load(modules.FUNCTIONS.stem, *options)
    bind(address, _NVIDIA)
    pretend(address, _NVIDIAS)
    virtual_functions.SRIOV_MANAGE.parent.mkdir(exist_ok=True)
    shutil.copy2(_SRIOV_MANAGE, virtual_functions.SRIOV_MANAGE)
    virtual_functions.SRIOV_MANAGE.chmod(0o755)


def be_own_again(address: str) -> None:
    sriov_manage("-d", address)
    virtual_functions.SRIOV_MANAGE.unlink()
    own_up(address, _NVIDIAS)
    bind(address, "")
    without_parts(address)
    unload(modules.FUNCTIONS.stem)


def drive(ids: str) -> None:
    """What is NVIDIA's driver here has devices with these ids from now on, until it is unloaded."""
    (_DEVICES.parent / "drivers" / _NVIDIA / "new_id").write_text(ids)


def place_of(address: str) -> tuple[str, int]:
    """Its path in the tree of PCI Express, and its NUMA node"""
    path = (_DEVICES / address).resolve()
    return str(path.relative_to("/sys/devices")), int((path / "numa_node").read_text())


def sriov_manage(*words: str) -> None:
    subprocess.run([virtual_functions.SRIOV_MANAGE, *words], check=True, capture_output=True)


def parameter(name: str) -> str:
    """Of the module that is NVIDIA's driver here"""
    return (_PARAMETERS / name).read_text().strip()


def set_parameter(name: str, value: str) -> None:
    (_PARAMETERS / name).write_text(value)


def types(address: str) -> list[str]:
    """The type that each of its virtual functions has, by its number; 0: none"""
    files = (_DEVICES / function / _NVIDIA / "current_vgpu_type" for function in parts(address))
    return [file.read_text().strip() for file in files]


def load(module: str, *options: str) -> None:
    subprocess.run(["modprobe", module, *options], check=True)


def unload(module: str) -> None:
    subprocess.run(["modprobe", "--remove", module], check=True)


def mediated() -> list[str]:
    """The uuids of all mediated devices"""
    return sorted(path.name for path in pathlib.Path("/sys/bus/mdev/devices").glob("*"))


def tell_qemu(*options: str) -> None:
    """What QEMU is started with from now on, beside what libvirt says."""
    _QEMU_OPTIONS.write_text(" ".join(options))


def hostname() -> str:
    return os.uname().nodename


def virsh(*words: str) -> str:
    argv = ["virsh", "--quiet", "--connect", "qemu:///system", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def profiles() -> list[str]:
    """The AppArmor profile of each QEMU, with its mode"""
    profile_names = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is a thread of the kernel
            if os.readlink(process / "exe").startswith("/usr/bin/qemu-system-"):
                profile_names.append((process / "attr/current").read_text().strip())
    return profile_names


def kernel_log() -> str:
    """Return the last messages of the kernel."""
    done = subprocess.run(["dmesg"], check=True, capture_output=True, text=True)
    return "\n".join(done.stdout.splitlines()[-60:])


def create(xml: str) -> str:
    """Starts a guest that libvirt forgets when it ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(xml)
        file.flush()
        return virsh("create", file.name)


def read(path: str) -> str:
    """What the file has, nothing where it is not there"""
    file = pathlib.Path(path)
    return file.read_text(errors="replace") if file.exists() else ""


def write(path: str, text: str, mode: int = 0o644) -> None:
    file = pathlib.Path(path)
    file.write_text(text)
    file.chmod(mode)


def listed() -> list[str]:
    """What ``nova-gpu list`` prints."""
    host_discovery = discovery.Discovery()
    rows = [
        cards.described(cards.Card(card, host_discovery.of_card(card)), {}, None)
        for card in host_discovery.find()
    ]
    return cards.table(rows).splitlines()


def shown_topology() -> str:
    """What ``nova-gpu topology`` prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        topology.main(discovery.Discovery(), as_json=False)
    return output.getvalue()


def tell_environment(variables: Mapping[str, str | None]) -> None:
    """What processes find that are started from now on; ``None``: no such variable"""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def quarantined() -> list[str]:
    """The cards in quarantine"""
    return sorted(map(str, quarantine.load(discovery.Discovery().quarantine)))


def proof(card: str) -> str:
    """Return what is written of the card's last cleaning."""
    return (discovery.Discovery().proofs / f"{card}.json").read_text()


def release(card: str) -> int:
    """``nova-gpu quarantine release``"""
    return release_command.release(discovery.Discovery().quarantine, card)


def clean_with(program: str) -> None:
    """That is what cleans a card from now on."""
    place.CLEAN.unlink(missing_ok=True)
    place.CLEAN.symlink_to(program)


def group_open(address: str) -> io.FileIO:
    return io.FileIO(f"/dev/vfio/{group(address)}", "r+")


@contextlib.contextmanager
def device_open(address: str) -> Iterator[None]:
    """As a guest has it, through a container"""
    with contextlib.ExitStack() as stack:
        container = os.open("/dev/vfio/vfio", os.O_RDWR)
        stack.callback(os.close, container)
        with group_open(address) as file:
            fcntl.ioctl(file, _GROUP_SET_CONTAINER, struct.pack("i", container))
            fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
            name = bytearray(address.encode() + b"\0")
            device = fcntl.ioctl(file, _GROUP_GET_DEVICE_FD, name, True)
            stack.callback(os.close, device)
        yield


@contextlib.contextmanager
def in_flight(address: str) -> Iterator[None]:
    """The card's group is open in no process, but in the queue of a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with group_open(address) as file:
            socket.send_fds(ours, [b"."], [file.fileno()])
        yield


_held: dict[str, int] = {}


def hold(card: str) -> None:
    """This process has the card's group, as QEMU has a guest's, until :func:`let_go`."""
    nova_gpu.privsep.vfio.give_to_guests(card)
    _held[card] = os.open(f"/dev/vfio/{group(card)}", os.O_RDWR)


def open_node(card: str) -> int:
    """This process, whose pid it gives, has the node of the host's driver, until
    :func:`close_node`."""
    (node,) = pathlib.Path("/dev/dri/by-path").glob(f"pci-{card}-card")
    _held["node"] = os.open(node, os.O_RDWR)
    return os.getpid()


def close_node() -> None:
    os.close(_held.pop("node"))


def answer_power_button(domain: str) -> None:
    """End the guest as soon as it is asked to shut down by ACPI, as its system would itself."""
    argv = [sys.executable, "-m", "tests.vfio.power_button", domain]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it listens


def kill_guest(domain: str) -> None:
    """Its QEMU dies, as of a fault of its own."""
    os.kill(_pid(domain), signal.SIGKILL)


def guest_process(domain: str) -> tuple[int, str, dict[str, str]]:
    """Return QEMU's pid, when it was started, and what it has open of VFIO, by the descriptor."""
    process = pathlib.Path("/proc", str(_pid(domain)))
    started = (process / "stat").read_text().rpartition(")")[2].split()[19]
    files = {link.name: os.readlink(link) for link in (process / "fd").iterdir()}
    return int(process.name), started, {fd: file for fd, file in files.items() if "vfio" in file}


def nodes_of_threads(domain: str) -> dict[str, list[int]]:
    """The NUMA nodes on whose processors the guest's threads may run, by their names"""
    nodes_by_thread: dict[str, set[int]] = {}
    for task in pathlib.Path(f"/proc/{_pid(domain)}/task").iterdir():
        nodes = nodes_by_thread.setdefault((task / "comm").read_text().strip(), set())
        for number in os.sched_getaffinity(int(task.name)):
            links = pathlib.Path(f"/sys/devices/system/cpu/cpu{number}").glob("node*")
            nodes.update(int(link.name.removeprefix("node")) for link in links)
    return {name: sorted(nodes) for name, nodes in nodes_by_thread.items()}


def nodes_of_memory(domain: str, least: int) -> list[list[int]]:
    """The NUMA nodes that have pages of each range of memory that the guest's domain ties to some.

    Ranges with fewer pages than *least* are left out.
    """
    lines = pathlib.Path(f"/proc/{_pid(domain)}/numa_maps").read_text().splitlines()
    ranges = [dict(re.findall(r" N(\d+)=(\d+)", line)) for line in lines if " bind:" in line]
    return [sorted(map(int, own)) for own in ranges if sum(map(int, own.values())) >= least]


def _pid(domain: str) -> int:
    return int(pathlib.Path(f"/run/libvirt/qemu/{domain}.pid").read_text())


def let_go(card: str) -> None:
    os.close(_held.pop(card))
    nova_gpu.privsep.vfio.give_to_host(card)
