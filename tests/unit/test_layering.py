# SPDX-License-Identifier: Apache-2.0
"""What import-linter cannot say of the layers; pyproject.toml has its contracts."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from nova_gpu.core.vgpu import vgpu
from tests.fixtures.checkout import EXTENSIONS, ROOT

PACKAGE = ROOT / "nova_gpu"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return all modules of the packages by their paths below the checkout."""
    packages = [PACKAGE, ROOT / "osc_gpu", *(p for e in EXTENSIONS for p in e.glob("*_gpu_*"))]
    paths = sorted(path for package in packages for path in package.rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


class ImportsTest(unittest.TestCase):
    def test_nova_compute_goes_on_when_its_files_are_another_releases(self) -> None:
        """From the upgrade of the package to the restart of the service; here they are gone."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE, f"{folder}/nova_gpu")
            command = [sys.executable, "-W", "ignore", "-c", _UPGRADED, folder]
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        late, rest = done.stdout.split("\n", 1)
        self.assertEqual(_NOT_OF_THE_SERVICE, set(late.split()), done.stderr)
        self.assertEqual("[] True written\n", rest, done.stderr)


# Modules of core, host and virt that nova-compute does not import: scripts, whose text it has read,
# and what only controllers and commands use. All others must be there once it has started.
_NOT_OF_THE_SERVICE = {
    "nova_gpu.core.flavor.validation",
    "nova_gpu.core.scheduling.capacity",
    "nova_gpu.core.scheduling.no_valid_host",
    "nova_gpu.core.scheduling.rank",
    "nova_gpu.host.mig.mig_maker",
    "nova_gpu.host.nvidia.kmsg",
    "nova_gpu.host.nvidia.nvml_probe",
    "nova_gpu.host.nvidia.vgpu_setter",
    "nova_gpu.host.pci.write_attribute",
    "nova_gpu.host.vfio.boot_configuration",
    "nova_gpu.host.vfio.card_script",
}
_UPGRADED = """
import functools, pathlib, pkgutil, shutil, sys
from unittest import mock
import nova_gpu.privsep
from nova_gpu.virt import driver, periodic
from nova_gpu.virt.delivery import service
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import binding
periods = mock.Mock()
periods._has_groups.return_value = False
periods._other_service.return_value = None
periods._load = functools.partial(periodic.Periods._load, periods)
with mock.patch.object(periodic, "stock_records"):
    periodic.Periods.begin(periods)
folder = pathlib.Path(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(nova_gpu.__path__, "nova_gpu.")]
others = ("api", "cmd", "scheduler", "virt_ext")  # of other processes, and nova.virt.gpu
print(*(n for n in names if n not in sys.modules and n.split(".")[1] not in others))
shutil.rmtree(folder / "nova_gpu")
for module, names in ((nova_gpu.privsep, nova_gpu.privsep._MODULES), (service, service.__all__)):
    assert all(getattr(module, name) for name in names)
means = binding.RebindSettings(Roots(), folder, 60)
attribute = folder / "attribute"
attribute.touch()
sysfs.write(str(attribute), "written", 60)
found = binding._run({"devices": []}, means)["holders"]
print(found, nvml.run([], 60).startswith(b"{"), attribute.read_text())
"""


class KindsTest(unittest.TestCase):
    def test_readers_and_deliveries_alone_name_a_kind_of_vgpu(self) -> None:
        """Others ask the kind for what follows from it, so that a new one is told to none."""
        own = ("nova_gpu/core/vgpu/vgpu.py", "nova_gpu/host/", "nova_gpu/virt/delivery/")
        kind = re.compile(rf"\bVGPUKind\.({'|'.join(vgpu.VGPUKind.__members__)})\b")
        paths = [path for path in modules() if kind.search((ROOT / path).read_text())]
        self.assertEqual([], [path for path in paths if not path.startswith(own)])
        self.assertIn(own[0], paths)


class NamespacesTest(unittest.TestCase):
    # setns(2), nsenter(1); the calls that take something from within a process: pidfd_getfd(2),
    # ptrace(2), process_vm_readv(2), and /proc/PID/root and cwd, which lead into its mounts.
    WAYS_IN = re.compile(r"setns|nsenter|umount|pidfd_getfd|ptrace|process_vm_|[}/]/(root|cwd)\b")

    def test_nothing_enters_a_guests_namespaces(self) -> None:
        for line in ("libc.setns(fd, 0)", "['nsenter', '-t']", 'open(f"/proc/{pid}/root/dev")'):
            self.assertTrue(self.WAYS_IN.search(line), line)
        paths = [path for path in modules() if self.WAYS_IN.search((ROOT / path).read_text())]
        self.assertEqual([], paths)

    def test_what_processes_write_is_read_as_bytes(self) -> None:
        """A name or a command line need not be UTF-8: nova_gpu.host.processes reads them."""
        as_text = re.compile(r"\bproc\b.*\bread_text\(")
        self.assertTrue(as_text.search('(roots.proc / str(pid) / "comm").read_text()'))
        paths = [path for path in modules() if as_text.search((ROOT / path).read_text())]
        self.assertEqual([], paths)
