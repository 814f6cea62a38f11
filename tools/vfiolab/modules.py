# SPDX-License-Identifier: Apache-2.0
"""A driver that divides a pretend card, built from the kernel's own samples.

samples/vfio-mdev/mbochs.c of the kernel makes mediated devices that are whole to QEMU: a display
with memory of its own, of three types that share what the driver has. Its parent is a device of its
own there; here it is a PCI function, as with a vendor's driver.
"""

from __future__ import annotations

import pathlib
import re
import shutil

from tools.novalab import steps
from tools.vfiolab import debian

# The module, and what its types begin with in sysfs.
NAME = "fakevgpu"
_SAMPLE = "samples/vfio-mdev/mbochs.c"
_PARENT = """
static char *parent;
module_param(parent, charp, 0444);

static struct device *parent_or(struct device *own)
{
\tstruct device *found = parent ? bus_find_device_by_name(&pci_bus_type, NULL, parent) : NULL;
\treturn found ? found : own;
}

static int __init mbochs_dev_init(void)"""
# What is changed in the sample: each has to be there once.
_CHANGES = (
    ("\nstatic int __init mbochs_dev_init(void)", _PARENT),
    (
        "mdev_register_parent(&mbochs_parent, &mbochs_dev,",
        "mdev_register_parent(&mbochs_parent, parent_or(&mbochs_dev),",
    ),
    ('#define MBOCHS_NAME\t\t  "mbochs"', f'#define MBOCHS_NAME\t\t  "{NAME}"'),
)


def packages(version: str) -> list[str]:
    """:param version: of the kernel, ``6.1.0-56-amd64``"""
    series = ".".join(version.split(".")[:2])
    common = version.removesuffix("-amd64") + "-common"
    return [
        *(f"linux-headers-{version}", f"linux-headers-{common}", f"linux-kbuild-{series}"),
        *("linux-compiler-gcc-12-x86", f"linux-source-{series}"),
    ]


def changed(sample: str) -> str:
    """:raises steps.Failed: where the sample is not the one that this was written for"""
    for before, after in _CHANGES:
        if sample.count(before) != 1:
            raise steps.Failed(f"{_SAMPLE} has {before.strip()!r} {sample.count(before)} times")
        sample = sample.replace(before, after)
    return sample


def build(version: str, folder: pathlib.Path, target: pathlib.Path, log: pathlib.Path) -> None:
    """Builds the module in *folder*, which is made for it, and copies it to *target*.

    :raises steps.Failed: with the log
    """
    folder.mkdir()
    for package in packages(version):
        debian.unpack(package, folder / package, log)
    # The packages find each other by absolute paths of an installed system.
    root = folder / "root"
    root.mkdir()
    for package in packages(version)[:4]:
        shutil.copytree(folder / package, root, symlinks=True, dirs_exist_ok=True)
    headers = root / "usr/src" / f"linux-headers-{version}"
    makefile = headers / "Makefile"
    makefile.write_text(
        re.sub("^include /usr/", f"include {root}/usr/", makefile.read_text(), flags=re.MULTILINE)
    )
    (archive,) = (folder / packages(version)[-1]).glob("usr/src/linux-source-*.tar.xz")
    source = archive.name.removesuffix(".tar.xz")
    steps.run(["tar", "-xf", str(archive), "-C", str(folder), f"{source}/{_SAMPLE}"], log)
    module = folder / "module"
    module.mkdir()
    (module / f"{NAME}.c").write_text(changed((folder / source / _SAMPLE).read_text()))
    (module / "Makefile").write_text(f"obj-m := {NAME}.o\n")
    steps.run(["make", "-C", str(headers), f"M={module}", "modules"], log)
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy2(module / f"{NAME}.ko", target)
