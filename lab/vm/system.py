# SPDX-License-Identifier: Apache-2.0
"""The VM's system: a disk with Debian, its kernel, and the kernel and initramfs of the guests.

It depends on Debian and on this module only. Files that change more often are shared as folders
over 9p.
"""

from __future__ import annotations

import lzma
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from lab.cloud import steps
from lab.vm import build_cache, debian, modules

KERNEL, INITRAMFS, DISK = "vmlinuz", "initramfs", "system.ext4"
# The folder of the guests' kernel and initramfs in the VM.
GUEST_KERNEL, GUEST_INITRAMFS = "/guest/vmlinuz", "/guest/initramfs"
EMULATOR = "usr/bin/qemu-system-x86_64"
_DISK_MIB = 4096
# The kernel modules that the VM may need; of the drivers, these.
_SUBSYSTEMS = ("arch", "block", "crypto", "fs", "lib", "mm", "net", "sound", "virt")
_DRIVERS = (
    *("acpi", "block/loop.ko", "block/virtio_blk.ko", "char", "crypto/ccp", "gpu/drm", "i2c"),
    *("net/dummy.ko", "net/ethernet/intel/e1000e", "net/macvlan.ko", "net/net_failover.ko"),
    *(
        "net/tun.ko",
        "net/veth.ko",
        "net/virtio_net.ko",
        "nvme",
        "pci/pci-pf-stub.ko",
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
_PACKED = ".xz"
_EARLY = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "9p", "9pnet_virtio")


def build(state: pathlib.Path) -> pathlib.Path:
    """Return the folder with :data:`KERNEL`, :data:`INITRAMFS` and :data:`DISK`; build it first.

    An existing folder with the same content is used again.
    """
    codename = debian.codename()
    images = [debian.kernel(name) for name in (debian.VM_KERNEL, debian.GUEST_KERNEL)]
    code = [pathlib.Path(name) for name in (__file__, debian.__file__, modules.__file__)]
    inside = [build_cache.INSIDE / name for name in ("initramfs.sh", "guest.sh", "qemu.sh")]
    key = build_cache.digest(images, *code, *inside, modules.FUNCTIONS, modules.INTERCEPT)

    def make(folder: pathlib.Path) -> None:
        log = state / "log" / f"{codename}-system.log"
        root, vm, guest = (folder / name for name in ("root", "vm-kernel", "guest-kernel"))
        with steps.step(f"kernels {' '.join(images)}", log):
            for image, tree in zip(images, (vm, guest), strict=True):
                debian.unpack([image], tree, log)
        with steps.step(f"Debian {codename} for the VM", log):
            debian.install_root(root, log)
        with steps.step("system disk", log):
            version = images[0].removeprefix("linux-image-")
            _copy_modules(_modules(vm) / version, root / "lib/modules" / version)
            extra = root / "lib/modules" / version / "extra"
            modules.build(version, folder / "modules", extra, log)
            shutil.rmtree(folder / "modules")
            steps.run(["depmod", "--basedir", str(root), version], log)
            (folder / KERNEL).write_bytes((vm / f"boot/vmlinuz-{version}").read_bytes())
            _make_initramfs(folder / INITRAMFS, root, version)
            _make_guest(root / "guest", root, guest)
            _wrap_emulator(root / EMULATOR)
            for name in ("opt/nova", "lab"):
                (root / name).mkdir(parents=True, exist_ok=True)
            make_disk(folder / DISK, root, _DISK_MIB, log)
        for tree in (root, vm, guest):
            shutil.rmtree(tree)

    return build_cache.made(state, f"{codename}-system", key, make)


def make_disk(disk: pathlib.Path, tree: pathlib.Path, size_mib: int, log: pathlib.Path) -> None:
    """Create a sparse ext4 filesystem with the files of *tree*, without mounting anything."""
    with disk.open("wb") as file:
        file.truncate(size_mib << 20)
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1", "-d", str(tree)]
    steps.run(["mke2fs", "-q", "-F", "-t", "ext4", *options, str(disk)], log)


def _modules(tree: pathlib.Path) -> pathlib.Path:
    """Return the folder of the kernel's modules in its unpacked package.

    It is usr/lib since Debian 13, of which lib is a link where the package is installed.
    """
    (folder,) = (
        tree / name for name in ("lib/modules", "usr/lib/modules") if (tree / name).is_dir()
    )
    return folder


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
        elif of.exists():
            shutil.copy2(of, to)
        else:
            shutil.copy2(f"{of}{_PACKED}", f"{to}{_PACKED}")
    for part in _LARGE:
        shutil.rmtree(target / "kernel" / part, ignore_errors=True)
    # busybox's insmod in the initramfs accepts no compressed modules, as newer kernels have.
    for packed in list(target.rglob(f"*.ko{_PACKED}")):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()


def _make_initramfs(path: pathlib.Path, root: pathlib.Path, version: str) -> None:
    tree = path.with_name("initramfs-tree")
    (tree / "bin").mkdir(parents=True)
    (tree / "lib").mkdir()
    shutil.copy2(root / "bin/busybox", tree / "bin")
    shutil.copy2(build_cache.INSIDE / "initramfs.sh", tree / "init")
    argv = ["modprobe", "--dirname", str(root), "--set-version", version]
    argv += ["--show-depends", "--all", *_EARLY]
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    modules = [line.split()[1] for line in output.splitlines() if line.startswith("insmod ")]
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
    shutil.copy2(build_cache.INSIDE / "guest.sh", tree / "init")
    _archive(tree, folder / pathlib.Path(GUEST_INITRAMFS).name)


def _wrap_emulator(program: pathlib.Path) -> None:
    """Replace the emulator by a script that starts it from its own folder, where its files are."""
    program.rename(f"{program}.real")
    shutil.copy2(build_cache.INSIDE / "qemu.sh", program)
    program.chmod(0o755)


def _archive(tree: pathlib.Path, path: pathlib.Path) -> None:
    """Pack *tree* into an archive that the kernel can unpack, and remove *tree*."""
    (tree / "init").chmod(0o755)
    names: Sequence[str] = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    with path.open("wb") as file:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet", "--owner=0:0"],
            input="\n".join(names).encode(),
            stdout=file,
            cwd=tree,
            check=True,
        )
    shutil.rmtree(tree)
