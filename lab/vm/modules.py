# SPDX-License-Identifier: Apache-2.0
"""Kernel modules that divide a pretended card: from the kernel's samples/vfio-mdev, and ours.

mbochs.c makes mediated devices that are complete for QEMU: a display with memory of its own, of
three types that share the driver's memory. mtty.c makes serial lines that return what is written to
them; since 6.7 it can save their content, so they can be migrated live. In the kernel the parent of
both is a device of its own; here it is a PCI function, as with a vendor's driver. Our own
fakefunctions.c gives virtual functions types as NVIDIA's driver does. interceptcr8.c protects
guests with UEFI from a fault of the emulated processor.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil

from lab.cloud import steps
from lab.vm import debian

# The modules. The types of its devices in sysfs begin with NAME, too.
NAME, LINE = "fakevgpu", "fakeline"
FUNCTIONS, INTERCEPT = (
    pathlib.Path(__file__).with_name(f"{name}.c") for name in ("fakefunctions", "interceptcr8")
)
# The kernel's series of Debian 12. Its packages have that in their names, those of 13 the version.
_BOOKWORMS = "6.1"
_PARENT = """
static char *parent;
module_param(parent, charp, 0444);

static struct device *parent_or(struct device *own)
{
\tstruct device *found = parent ? bus_find_device_by_name(&pci_bus_type, NULL, parent) : NULL;
\treturn found ? found : own;
}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A kernel module from the kernel's samples.

    ``name`` is the module's, ``source`` the path of the sample. ``changes`` are pairs of a text
    that occurs once in it and its replacement.
    """

    name: str
    source: str
    changes: tuple[tuple[str, str], ...]


def _parent(start: str, parent: str, own: str) -> tuple[tuple[str, str], ...]:
    """Return the changes that let a PCI function be the parent in place of the device *own*."""
    begin = f"\nstatic int __init {start}(void)"
    register = f"mdev_register_parent(&{parent}, "
    return (
        (begin, f"{_PARENT}{begin}"),
        (f"{register}&{own},", f"{register}parent_or(&{own}),"),
    )


_DISPLAY = Sample(
    NAME,
    "samples/vfio-mdev/mbochs.c",
    (
        *_parent("mbochs_dev_init", "mbochs_parent", "mbochs_dev"),
        ('#define MBOCHS_NAME\t\t  "mbochs"', f'#define MBOCHS_NAME\t\t  "{NAME}"'),
    ),
)
# It cannot save its devices' state in Debian 12's kernel.
_SERIAL_LINE = Sample(
    LINE,
    "samples/vfio-mdev/mtty.c",
    (
        *_parent("mtty_dev_init", "mtty_dev.parent", "mtty_dev.dev"),
        # The kernel can report a device's dirty log only with CONFIG_IOMMUFD, which Debian's
        # kernel lacks: QEMU would fail to request it.
        ("\tvdev->log_ops = &mtty_log_ops;\n", ""),
    ),
)


def samples(version: str) -> tuple[Sample, ...]:
    """Return the samples to build for a kernel of this version."""
    return (_DISPLAY,) if _series(version) == _BOOKWORMS else (_DISPLAY, _SERIAL_LINE)


def packages(version: str) -> list[str]:
    """Return the packages that are needed to build modules for a kernel.

    :param version: the kernel's version, ``6.1.0-56-amd64`` or ``6.12.118+deb13-amd64``
    """
    series = _series(version)
    name = version.removesuffix("-amd64")
    headers = [f"linux-headers-{version}", f"linux-headers-{name}-common"]
    if series == _BOOKWORMS:
        built = [f"linux-kbuild-{series}", "linux-compiler-gcc-12-x86"]
    else:
        built = [f"linux-kbuild-{name}"]
    return [*headers, *built, f"linux-source-{series}"]


def changed(sample: Sample, text: str) -> str:
    """Return *text* of the sample with the changes."""
    for before, after in sample.changes:
        if (count := text.count(before)) != 1:
            raise steps.Failed(f"{sample.source} has {before.strip()!r} {count} times")
        text = text.replace(before, after)
    return text


def build(version: str, folder: pathlib.Path, target: pathlib.Path, log: pathlib.Path) -> None:
    """Build the modules for a kernel in the new folder *folder*; copy them to *target*."""
    folder.mkdir()
    # The packages refer to each other by absolute paths of an installed system.
    root = folder / "root"
    debian.unpack(packages(version), root, log)
    headers = root / "usr/src" / f"linux-headers-{version}"
    makefile = headers / "Makefile"
    makefile.write_text(
        re.sub("^include /usr/", f"include {root}/usr/", makefile.read_text(), flags=re.MULTILINE)
    )
    # Otherwise make would generate type information for debuggers with a program (pahole) that this
    # machine may lack.
    (headers / "vmlinux").unlink(missing_ok=True)
    (archive,) = root.glob("usr/src/linux-source-*.tar.xz")
    source = archive.name.removesuffix(".tar.xz")
    made = samples(version)
    # tar ends at the first file of each name, instead of reading the rest of the archive.
    argv = ["tar", "--occurrence=1", "-xf", str(archive), "-C", str(folder)]
    steps.run([*argv, *(f"{source}/{sample.source}" for sample in made)], log)
    module = folder / "module"
    module.mkdir()
    for sample in made:
        text = changed(sample, (folder / source / sample.source).read_text())
        (module / f"{sample.name}.c").write_text(text)
    for own in (FUNCTIONS, INTERCEPT):
        shutil.copy2(own, module)
    names = (*(sample.name for sample in made), FUNCTIONS.stem, INTERCEPT.stem)
    objects = " ".join(f"{name}.o" for name in names)
    (module / "Makefile").write_text(f"obj-m := {objects}\n")
    steps.run(["make", "-C", str(headers), f"M={module}", "modules"], log)
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy2(module / f"{name}.ko", target)


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])
