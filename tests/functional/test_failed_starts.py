# SPDX-License-Identifier: Apache-2.0
"""Guests that fail to start because of their host: what the next ones get, and who reads why."""

from __future__ import annotations

import re
import time
import types

import fixtures

from nova_gpu.virt.health import failed_starts
from tests.fixtures import cdi, hosts
from tests.functional import base, kvm, profiled
from tests.functional.readings import Server

_BUS = re.compile(r'bus="0x(..)" slot="0x(..)" function="0x(.)"')


class Failing:
    """QEMU ends with a text, in which {} stands for the guest's function, until it is empty."""

    HOSTS = ("host1",)
    text = ""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.later = 0.0
        clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + self.later)
        self.useFixture(  # type: ignore[attr-defined]
            fixtures.MonkeyPatch("nova_gpu.virt.health.failed_starts.time", clock)
        )
        self.connection().says = self.say  # type: ignore[attr-defined]

    def say(self, xml: str) -> str | None:
        bus = _BUS.search(xml)
        name = "0000:{}:{}.{}".format(*bus.groups()) if bus else ""
        return self.text.format(name) if self.text and name else None

    def wait_ten_minutes(self) -> None:
        self.later += failed_starts.TOGETHER_S
        self.period()  # type: ignore[attr-defined]


class ManagerTest(Failing, profiled.ProfiledServersTestBase):
    """nvidia-vgpu-mgr is down: each function fails, until it runs again."""

    text = "-device vfio-pci: vfio {}: error getting device from group 60: Input/output error"

    def boot_failing(self) -> Server:
        return self.boot(self.of_type(1155), expected_state="ERROR")

    def test_no_function_is_lost(self) -> None:
        for _ in range(failed_starts.MOST):
            self.boot_failing()
        self.period()
        self.assertEqual((4, 0, 0), self.inventories()[1155])
        server = self.boot_failing()  # with another function
        self.period()
        fault = self._show_server(server)["fault"]
        self.assertIn("NVIDIA's vGPU manager refuses it", fault["message"])
        self.assertNotIn("journal", fault["message"])
        self.assertIn("its journal", fault["details"])
        self.assertIn("its journal", self.log())
        self.assertEqual((4, 4, 0), self.inventories()[1155])
        self.assertIn("New instances do not get virtual functions with vGPU types", self.log())
        self.assertIn("No valid host", self.boot_refused(self.of_type(1155)))
        self.wait_ten_minutes()
        self.assertEqual((4, 0, 0), self.inventories()[1155], "a flavor may ask for several")
        self.boot_failing()
        self.period()
        self.assertEqual((4, 4, 0), self.inventories()[1155])
        self.wait_ten_minutes()
        self.text = ""
        self.boot(self.of_type(1155))
        self.period()
        self.assertEqual((4, 0, 1), self.inventories()[1155])
        self.boot(self.of_type(1155))

    def test_a_function_with_which_no_guest_starts(self) -> None:
        """It is left out, and the next one given."""
        self.leaves = {"reserved": "the function is out until it is enabled anew"}
        text = self.text.format(profiled.FIRST[0])
        first = 'bus="0x3b" slot="0x00" function="0x4"'
        self.connection().says = lambda xml: text if first in xml else None
        for _ in range(failed_starts.MOST):
            self.boot_failing()
        second = profiled.slots(1155, profiled.FIRST[1])
        self.assertVGPUs(self.boot(self.of_type(1155)), second)


class NodeTest(Failing, kvm.KVMServersTestBase):
    """QEMU may not open a node of the host: no card is at fault."""

    text = "vfio {}: failed to open /dev/vfio/80: Permission denied"

    def test_two_starts_and_then_one_in_ten_minutes(self) -> None:
        for _ in range(2):
            server = self.boot(self.gpu_flavor(1), expected_state="ERROR")
        self.period()
        fault = self._show_server(server)["fault"]["message"]
        self.assertIn("QEMU may not open the host's /dev/vfio", fault)
        self.assertInventory(reserved=self.TOTAL)
        self.assertIn("none free", self.boot_refused(self.gpu_flavor(1)))
        self.wait_ten_minutes()
        self.assertInventory()
        self.text = ""
        self.boot(self.gpu_flavor(1))
        self.period()
        self.assertInventory(used=1)


class OldFilesTest(base.GPUServersTestBase):
    """Three hosts whose driver was upgraded, and their CDI files not, and one as it was"""

    HOSTS = ("host1", "host2", "host3", "host4")

    def prepare(self, host: hosts.Host) -> None:
        made = cdi.nvidia(host.root / "driver", range(self.TOTAL))
        cdi.save(host.roots.cdi_spec_dirs[0] / "nvidia.json", made)

    def test_none_is_tried(self) -> None:
        self.leaves = {"reserved": "the files are still old"}
        for name in self.HOSTS[:3]:
            (self.hosts[name].root / f"driver{cdi.LIBDIR}/libcuda.so.{cdi.VERSION}").unlink()
            self.period(name)
            self.assertInventory(reserved=self.TOTAL, host=name)
        for _ in range(3):
            self.assertEqual("host4", self.host_of(self.boot(self.gpu_flavor(1))))
