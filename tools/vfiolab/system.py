# SPDX-License-Identifier: Apache-2.0
"""The VM's system: a disk with Debian, its kernel, and the kernel and initramfs of the guests.

It depends on Debian and on this module only. What changes more often comes in as folders over 9p.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from tools.novalab import steps
from tools.vfiolab import debian, modules, place

KERNEL, INITRAMFS, DISK = "vmlinuz", "initramfs", "system.ext4"
# Where the guests' kernel and initramfs are in the VM.
GUEST_KERNEL, GUEST_INITRAMFS = "/guest/vmlinuz", "/guest/initramfs"
_DISK_MIB = 4096
# Of the kernel's modules what the VM can have a use for: of the drivers, these.
_SUBSYSTEMS = ("arch", "block", "crypto", "fs", "lib", "mm", "net", "sound", "virt")
_DRIVERS = (
    *("acpi", "block/loop.ko", "block/virtio_blk.ko", "char", "crypto/ccp", "gpu/drm", "i2c"),
    *("net/dummy.ko", "net/ethernet/intel/e1000e", "net/macvlan.ko", "net/net_failover.ko"),
    *(
        "net/tun.ko",
        "net/veth.ko",
        "net/virtio_net.ko",
        "nvme",
        "vfio",
        "video/fbdev",
        "virt",
        "virtio",
    ),
)
_LARGE = (
    *(f"drivers/gpu/drm/{name}" for name in ("amd", "i915", "nouveau", "radeon", "vmwgfx")),
    *(f"sound/{name}" for name in ("firewire", "isa", "soc", "usb")),
)
_EARLY = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "9p", "9pnet_virtio")


def build(state: pathlib.Path) -> pathlib.Path:
    """The folder with :data:`KERNEL`, :data:`INITRAMFS` and :data:`DISK`.

    :raises steps.Failed: with the log of what failed
    """
    kernels = [debian.kernel(name) for name in (debian.VM_KERNEL, debian.GUEST_KERNEL)]
    inside = [place.INSIDE / name for name in ("initramfs.sh", "guest.sh")]
    sources = [pathlib.Path(__file__), pathlib.Path(modules.__file__)]
    key = place.digest(debian.ROOT_KEY, kernels, *sources, *inside)

    def make(folder: pathlib.Path) -> None:
        log = state / "log" / "system.log"
        root, vm, guest = (folder / name for name in ("root", "vm-kernel", "guest-kernel"))
        with steps.step(f"kernels {' '.join(kernels)}", log):
            debian.unpack(kernels[0], vm, log)
            debian.unpack(kernels[1], guest, log)
        with steps.step(f"Debian {debian.CODENAME} for the VM", log):
            debian.install_root(root, log)
        with steps.step("system disk", log):
            version = kernels[0].removeprefix("linux-image-")
            _copy_modules(vm / "lib/modules" / version, root / "lib/modules" / version)
            extra = root / "lib/modules" / version / "extra"
            modules.build(version, folder / "modules", extra, log)
            shutil.rmtree(folder / "modules")
            steps.run(["depmod", "--basedir", str(root), version], log)
            (folder / KERNEL).write_bytes((vm / f"boot/vmlinuz-{version}").read_bytes())
            _make_initramfs(folder / INITRAMFS, root, version)
            _make_guest(root / "guest", root, guest)
            for name in ("opt/nova", "lab"):
                (root / name).mkdir(parents=True, exist_ok=True)
            make_disk(folder / DISK, root, _DISK_MIB, log)
        for tree in (root, vm, guest):
            shutil.rmtree(tree)

    return place.made(state, "system", key, make)


def make_disk(disk: pathlib.Path, tree: pathlib.Path, size_mib: int, log: pathlib.Path) -> None:
    """A sparse ext4 filesystem with the files of *tree*, made without mounting anything.

    :raises steps.Failed: with the log
    """
    with disk.open("wb") as file:
        file.truncate(size_mib << 20)
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1", "-d", str(tree)]
    steps.run(["mke2fs", "-q", "-F", "-t", "ext4", *options, str(disk)], log)


def _copy_modules(source: pathlib.Path, target: pathlib.Path) -> None:
    target.mkdir(parents=True)
    for file in source.glob("modules.*"):
        shutil.copy2(file, target)
    parts = [*_SUBSYSTEMS, *(f"drivers/{name}" for name in _DRIVERS)]
    for part in parts:
        of, to = source / "kernel" / part, target / "kernel" / part
        to.parent.mkdir(parents=True, exist_ok=True)
        if of.is_dir():
            shutil.copytree(of, to)
        else:
            shutil.copy2(of, to)
    for part in _LARGE:
        shutil.rmtree(target / "kernel" / part, ignore_errors=True)


def _make_initramfs(path: pathlib.Path, root: pathlib.Path, version: str) -> None:
    tree = path.with_name("initramfs-tree")
    (tree / "bin").mkdir(parents=True)
    (tree / "lib").mkdir()
    shutil.copy2(root / "bin/busybox", tree / "bin")
    shutil.copy2(place.INSIDE / "initramfs.sh", tree / "init")
    argv = ["modprobe", "--dirname", str(root), "--set-version", version]
    argv += ["--show-depends", "--all", *_EARLY]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    modules = [line.split()[1] for line in said.splitlines() if line.startswith("insmod ")]
    names = list(dict.fromkeys(modules))  # in the order in which they are needed
    for name in names:
        shutil.copy2(name, tree / "lib")
    (tree / "modules").write_text("".join(f"{pathlib.Path(name).name}\n" for name in names))
    _archive(tree, path)


def _make_guest(folder: pathlib.Path, root: pathlib.Path, kernel: pathlib.Path) -> None:
    folder.mkdir()
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    shutil.copy2(image, folder / pathlib.Path(GUEST_KERNEL).name)
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy2(root / "bin/busybox", tree / "bin")
    shutil.copy2(place.INSIDE / "guest.sh", tree / "init")
    _archive(tree, folder / pathlib.Path(GUEST_INITRAMFS).name)


def _archive(tree: pathlib.Path, path: pathlib.Path) -> None:
    """*tree* as the kernel unpacks it; it is gone afterwards."""
    (tree / "init").chmod(0o755)
    names: Sequence[str] = sorted(str(each.relative_to(tree)) for each in tree.rglob("*"))
    with path.open("wb") as file:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet", "--owner=0:0"],
            input="\n".join(names).encode(),
            stdout=file,
            cwd=tree,
            check=True,
        )
    shutil.rmtree(tree)
