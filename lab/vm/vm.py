# SPDX-License-Identifier: Apache-2.0
"""A VM that can be booted: the files it is made of, and QEMU's command line for it."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import shutil

from lab import packages
from lab.cloud import steps
from lab.vm import build_cache, cards, debian, environment, system

# The state of a saved VM, and its changes to its disk.
STATE, OVERLAY = "state", "system.qcow2"
# The memory of the second NUMA node, which has no processor, or one of two.
_OTHER_NODE_MIB = {1: 256, 2: 1024}


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A network between two VMs, over UDP ports of this machine. ``number`` is that of this VM."""

    number: int
    own_port: int
    other_port: int

    @property
    def address(self) -> str:
        return f"10.0.3.{self.number}"

    @property
    def mac(self) -> str:
        return f"52:54:00:00:03:{self.number:02x}"

    def arguments(self) -> list[str]:
        loopback = "127.0.0.1"
        ends = f"udp={loopback}:{self.other_port},localaddr={loopback}:{self.own_port}"
        card = f"virtio-net-pci,netdev=line,mac={self.mac},romfile="
        return ["-netdev", f"socket,id=line,{ends}", "-device", f"{card},bus=pcie.0,addr=0x14"]


@dataclasses.dataclass(frozen=True, slots=True)
class VM:
    """A VM: its files and its variants.

    ``name`` is its hostname. ``processors``: 1, or 2, one on each NUMA node. ``iommu`` False: the
    kernel does not use the IOMMU. ``bare``: the VM has neither udev nor libvirtd. ``confined``:
    AppArmor confines libvirtd and guests. ``prepared``: the module that it imports before it is
    saved. ``saved``: the folder from which it is resumed, made by :mod:`lab.vm.saved`.
    """

    emulator: pathlib.Path
    system: pathlib.Path
    environment: pathlib.Path
    tree: pathlib.Path
    name: str = "labvm"
    memory_mib: int = 3072
    processors: int = 1
    iommu: bool = True
    bare: bool = False
    confined: bool = False
    append: str = ""
    line: Line | None = None
    prepared: str | None = None
    saved: pathlib.Path | None = None

    def arguments(self, out: pathlib.Path, console: pathlib.Path) -> list[str]:
        """Return QEMU's command line."""
        other_mib = _OTHER_NODE_MIB[self.processors]
        return [
            *(str(self.emulator), "-name", "labvm", "-machine", "q35", "-accel", "tcg"),
            # Without erms the kernel copies and clears eight bytes at a time instead of one.
            *("-cpu", "max,la57=off,erms=off", "-smp", str(self.processors)),
            *("-m", str(self.memory_mib), *_node(0, self.memory_mib - other_mib, ",cpus=0")),
            *_node(1, other_mib, ",cpus=1" if self.processors > 1 else ""),
            *("-L", "/usr/share/qemu", "-L", "/usr/share/seabios", "-L", "/usr/lib/ipxe/qemu"),
            *("-nodefaults", "-vga", "none", "-display", "none", "-no-reboot"),
            *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
            *("-device", "intel-iommu,intremap=on,caching-mode=on,aw-bits=48"),
            *("-kernel", str(self.system / system.KERNEL)),
            *("-initrd", str(self.system / system.INITRAMFS)),
            *("-append", self._command_line()),
            *_disk("system", self.system / system.DISK, "0x2", self.saved, bool(self.prepared)),
            *_disk("environment", self.environment / environment.DISK, "0x3"),
            *_share("lab", build_cache.INSIDE, "0x10", "readonly=on"),
            *_share("project", self.tree, "0x11", "readonly=on"),
            *_share("out", out, "0x12"),
            # In the VM this machine is lab.vm.OUTSIDE.
            *("-netdev", "user,id=outside,ipv6=off"),
            *("-device", "virtio-net-pci,netdev=outside,bus=pcie.0,addr=0x13,romfile="),
            *(self.line.arguments() if self.line else ()),
            *cards.arguments(saved=bool(self.prepared or self.saved)),
            *(_incoming(self.saved / STATE) if self.saved else ()),
        ]

    def told(self) -> list[str]:
        """Return what a resumed VM must be told: its hostname and its network line."""
        return [self.name, *((self.line.address, self.line.mac) if self.line else ())]

    def _command_line(self) -> str:
        # On a busy machine the emulated timer fires later than the kernel's check tolerates.
        words = ["console=ttyS0", "loglevel=4", "panic=-1", "no_timer_check", "mitigations=off"]
        # Linux 6.1's iommu_release_device() frees the IOMMU driver's data of a device before it
        # waits for the lock of the group that the device is still in. If QEMU takes the group out
        # of its container meanwhile, the kernel follows a NULL pointer. With one processor and no
        # preemption no other thread can run in between.
        words.append("preempt=none")
        words.append("intel_iommu=on" if self.iommu else "intel_iommu=off")
        words.append(
            "labvm=bare" if self.bare else f"labvm.id={cards.VENDOR_ID}:{cards.PRODUCT_ID}"
        )
        if self.confined:
            words.append("labvm=confined")
        if self.prepared:
            words.append(f"labvm.prepared={self.prepared}")
            words.append(f"labvm.away={','.join(cards.FORGOTTEN)}")
        else:
            words.append(f"labvm.name={self.name}")
            if self.line:
                words.append(f"labvm.address={self.line.address}")
        return " ".join([*words, self.append]).strip()


def obstacle(venv: pathlib.Path) -> str | None:
    """Return why this machine can run no VM, ``None`` if it can or only packages are missing."""
    return debian.obstacle() or environment.obstacle(venv)


def build(
    state: pathlib.Path,
    tree: pathlib.Path,
    venv: pathlib.Path,
    **options: object,
) -> VM:
    """Return a VM, and build those of its files that are missing."""
    log = state / "log" / "packages.log"
    if added := packages.install(debian.NEEDED, log):
        steps.say(f"  installed {' '.join(added)}")
    parts = (system.build(state), environment.build(state, venv), _emulator(state))
    build_cache.prune(state, set(parts))
    booted, installed, emulator = parts
    (program,) = emulator.iterdir()
    return VM(program, booted, installed, tree.resolve(), **options)  # type: ignore[arg-type]


def _emulator(state: pathlib.Path) -> pathlib.Path:
    program = pathlib.Path(shutil.which("qemu-system-x86_64") or "/usr/bin/qemu-system-x86_64")
    key = build_cache.digest(program, pathlib.Path(cards.__file__))

    def make(folder: pathlib.Path) -> None:
        try:
            cards.emulator(folder)
        except ValueError as error:
            raise steps.Failed(f"no card can be pretended: {error}") from error

    return build_cache.made(state, "emulator", key, make)


def _node(number: int, memory_mib: int, more: str = "") -> list[str]:
    memory = f"memory-backend-ram,id=memory{number},size={memory_mib}M"
    node = f"node,nodeid={number},memdev=memory{number}{more}"
    return ["-object", memory, "-numa", node]


def _disk(
    name: str,
    file: pathlib.Path,
    slot: str,
    saved: pathlib.Path | None = None,
    overlaid: bool = False,
) -> list[str]:
    """Return QEMU's arguments for a disk whose file must not be written to.

    :param saved: the folder of a saved VM, whose changes to the disk are in effect
    :param overlaid: whether the caller puts an overlay on the disk before the VM runs, and keeps
        it; otherwise changes are lost
    """
    content = f"file={file},format=raw"
    if saved:
        content = f"file={saved / OVERLAY},format=qcow2,backing.driver=raw"
        content += f",backing.file.driver=file,backing.file.filename={file}"
    snapshot = "off" if overlaid else "on"
    drive = f"{content},if=none,id={name},snapshot={snapshot},cache=unsafe"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},bus=pcie.0,addr={slot}"]


def _incoming(state: pathlib.Path) -> list[str]:
    return ["-incoming", f"exec:cat {shlex.quote(str(state))}"]


def _share(tag: str, folder: pathlib.Path, slot: str, *options: str) -> list[str]:
    words = ["local", f"id={tag}", f"path={folder}", "security_model=none", *options]
    device = f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0,addr={slot}"
    return ["-fsdev", ",".join(words), "-device", device]
