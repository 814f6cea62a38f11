# SPDX-License-Identifier: Apache-2.0
"""With the real script in a process of its own, and a kernel that a thread plays."""

from __future__ import annotations

import os
import pathlib
import subprocess
import threading
import time
import unittest
from concurrent import futures

import fixtures
from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.host import child_process
from nova_gpu.host.pci import discovery
from nova_gpu.host.vfio import binding, open_devices, passthrough
from tests.fixtures import consoles, hosts, kernel, nodes, pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO, USB = "0000:81:00.0", "0000:81:00.1", "0000:81:00.2"


class BindingTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO, 0x0C0330))
        self.host.bind(AUDIO, "snd_hda_intel")
        self.kernel = self.useFixture(
            kernel.Kernel(self.host, ("vfio-pci", "nvidia", "snd_hda_intel"))
        )
        self.card = model.PciAddress.parse(CARD)
        self.records = self.root / "gpu-bindings"
        self.log = self.useFixture(fixtures.FakeLogger())

    def settings(self, timeout_s: float = 60) -> binding.RebindSettings:
        return binding.RebindSettings(self.host.roots, self.records, timeout_s)

    def to_guests(self, timeout_s: float = 60) -> None:
        binding.give_to_guests(self.card, self.settings(timeout_s))

    def to_host(self) -> None:
        binding.give_to_host(self.card, self.settings())

    def refused(self, timeout_s: float = 60) -> exception.BindingFailed:
        error = self.assertRaises(exception.BindingFailed, self.to_guests, timeout_s)
        self.assertEqual(CARD, error.address)
        return error

    def drivers(self) -> list[str | None]:
        links = [self.host.path(address) / "driver" for address in (CARD, AUDIO, USB)]
        return [
            os.readlink(link).rpartition("/")[2] if link.is_symlink() else None for link in links
        ]

    def overrides(self) -> list[str]:
        functions = (CARD, AUDIO, USB)
        texts = [
            (self.host.path(function) / "driver_override").read_text() for function in functions
        ]
        return [text.strip() for text in texts]


class TestThereAndBack(BindingTestCase):
    def test_what_the_operator_wants_to_drive_it(self) -> None:
        """driverctl's way: the host is booted with it, and it is neither lost nor believed."""
        for address, override in ((CARD, "nvidia"), (USB, "none")):
            (self.host.path(address) / "driver_override").write_text(f"{override}\n")
        for _ in range(2):
            self.to_guests()
            self.assertEqual(["vfio-pci"] * 3, self.overrides())
            self.to_host()
            self.assertEqual(["nvidia", "snd_hda_intel", None], self.drivers())
            self.assertEqual(["nvidia", "", "none"], self.overrides())

    def test_prepared_at_boot_stays(self) -> None:
        for address in (CARD, AUDIO, USB):
            self.host.bind(address, "vfio-pci")
        self.to_guests()
        self.to_host()
        self.assertEqual(["vfio-pci"] * 3, self.drivers())
        self.assertEqual([], self.kernel.done)
        self.assertFalse(self.records.exists())

    def test_what_others_bind_it_to(self) -> None:
        for before, meanwhile, after in (
            ("vfio-pci", "vfio-pci", "vfio-pci"),  # prepared in part
            ("nvidia", None, "nvidia"),  # an earlier try left it without a driver
            ("nvidia", "nouveau", "nouveau"),  # as the operator wants
        ):
            with self.subTest(before=before, meanwhile=meanwhile):
                self.host.bind(CARD, before)
                self.to_guests()
                self.assertEqual(["vfio-pci"] * 3, self.drivers())
                self.host.bind(CARD, meanwhile)
                self.to_host()
                self.assertEqual([after, "snd_hda_intel", None], self.drivers())

    def test_what_was_written_before_the_host_booted_is_void(self) -> None:
        self.to_guests()
        self.kernel.boot("00000000-30a7-4b02-8d0c-1f36be1a5d80")
        self.to_host()  # prepared at boot since
        self.assertEqual(["vfio-pci"] * 3, self.drivers())
        self.assertEqual(frozenset(), binding.recorded(self.records))

    def test_a_card_that_is_gone(self) -> None:
        self.to_guests()
        for address in (USB, AUDIO, CARD):
            self.host.remove(address)
        self.to_host()
        self.assertEqual(frozenset(), binding.recorded(self.records))
        self.assertIn("no GPU at this address", self.refused().reason)
        self.assertNotIn("[gpu]addresses", self.log.output)

    def test_a_card_that_went_and_came_back(self) -> None:
        self.to_guests()
        for address in (USB, AUDIO, CARD):
            self.host.remove(address)
        self.host.add_gpu(CARD, "10de", "1e04")
        self.to_host()
        self.assertEqual(frozenset(), binding.recorded(self.records))
        self.assertEqual("nvidia", os.path.basename(os.readlink(self.host.path(CARD) / "driver")))


class TestRefusals(BindingTestCase):
    def assertAsBefore(self) -> None:
        self.assertEqual(["nvidia", "snd_hda_intel", None], self.drivers())
        self.assertNotIn("vfio-pci", self.overrides())
        self.assertEqual(frozenset(), binding.recorded(self.records))

    def refuse(self, address: str) -> None:
        self.kernel.refused.add(address)

    def test_last_function_fails(self) -> None:
        (self.host.path(CARD) / "driver_override").write_text("nvidia\n")
        self.refuse(USB)
        self.assertIn(f"{USB} is bound to no driver and not to vfio-pci", self.refused().reason)
        self.assertAsBefore()
        self.assertEqual(["nvidia", "", ""], self.overrides())
        # The kernel of this test refuses to bind it to anything.
        self.refuse(AUDIO)
        self.assertIn(f"{AUDIO} is bound to no driver", self.refused().reason)
        self.assertEqual(["nvidia", None, None], self.drivers())
        self.assertEqual({self.card}, binding.recorded(self.records))
        self.assertIn("to its former drivers", self.log.output)

    def test_no_module(self) -> None:
        folder = self.host.roots.sysfs / "bus/pci/drivers/vfio-pci"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(self.root)))
        error = self.refused()
        self.assertIn("modprobe vfio-pci cannot be started", error.reason)
        self.assertAsBefore()

    def test_in_use_by_a_process(self) -> None:
        """The device is /dev/null, which anybody may open."""
        sound = self.host.path(AUDIO) / "sound/card0/controlC0"
        sound.mkdir(parents=True)
        (sound / "dev").write_text("1:3\n")
        process = self.host.roots.proc / "812"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(b"/usr/bin/pipewire\0-v\0")
        (process / "fd/7").symlink_to("/dev/null")
        error = self.refused()
        self.assertEqual("/usr/bin/pipewire -v (pid 812)", error.others)
        self.assertIn("in use by processes of the host: /usr/bin/pipewire -v", str(error))
        self.assertEqual([], self.kernel.done)
        self.assertAsBefore()
        (process / "fd/7").unlink()
        self.to_guests()
        (process / "fd/7").symlink_to("/dev/null")
        error = self.assertRaises(exception.CardInUse, self.to_host)
        self.assertIn("pid 812", error.others)
        self.assertEqual({self.card}, binding.recorded(self.records))

    def test_nobody_opens_it_while_it_changes_hands(self) -> None:
        """The file is there with NVIDIA's vGPU software (open-gpu-kernel-modules,
        kernel-open/nvidia/nv-procfs.c). What the driver refuses is read back as another value."""
        lock = self.host.roots.proc / f"driver/nvidia/gpus/{CARD}/unbindLock"
        lock.symlink_to("/dev/null")
        error = self.refused()
        self.assertIn(
            "unbindLock was not granted: a process has just opened the card", error.reason
        )
        self.assertEqual([], [line for line in self.kernel.done if line.startswith(CARD)])
        lock.unlink()
        written = self.root / "unbindLock"  # which outlives the folder of the card
        written.write_text("0\n")
        lock.symlink_to(written)
        self.to_guests()
        self.assertEqual("1\n", written.read_text())

    def test_a_host_that_cannot_be_read(self) -> None:
        """privsep could not send DiscoveryFailed: it is made of two arguments and has one."""
        self.host.devices.rename(self.root / "devices")
        self.assertIn("cannot be listed", self.refused().reason)

    def test_shows_the_console(self) -> None:
        consoles.add_framebuffer(self.host.path(CARD), self.host.roots.sysfs, 0)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=True)
        self.assertIn("text console", self.refused().reason)
        self.assertAsBefore()

    def test_records_that_are_not_roots(self) -> None:
        self.records.mkdir(mode=0o755)
        self.records.chmod(0o777)
        self.assertIn("all users can write to it", self.refused().reason)
        self.records.rmdir()
        elsewhere = self.root / "elsewhere"
        elsewhere.mkdir()
        self.records.symlink_to(elsewhere)
        self.assertIn("is not a folder", self.refused().reason)
        self.assertEqual([], self.kernel.done)


class TestInUse(BindingTestCase):
    def open(self, function: str, pid: int, command: bytes) -> None:
        """The device of all is /dev/null, which anybody may open."""
        process = self.host.roots.proc / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(command)
        device = self.host.path(function) / "drm/card0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "dev").write_text("1:3\n" if function == CARD else "1:5\n")
        (process / "fd/7").symlink_to("/dev/null" if function == CARD else "/dev/zero")

    def in_use(self, *addresses: str) -> dict[str, str]:
        cards = map(model.PciAddress.parse, addresses)
        holders = binding.in_use(cards, self.settings())
        return {str(address): open_devices.as_text(who) for address, who in holders.items()}

    def test_a_process_that_calls_itself_so(self) -> None:
        self.open(CARD, 812, "\x1b]0;mine\x07\u202ex\n".encode() + b"a" * 4000)
        (who,) = self.in_use(CARD).values()
        self.assertTrue(who.isprintable(), who)
        self.assertRegex(who, r"^\ufffd]0;mine\ufffd\ufffdx a+(\.\.\.)? \(pid 812\)$")

    def test_who_has_which(self) -> None:
        other, third = "0000:82:00.0", "0000:83:00.0"
        for address in (other, third):
            self.host.add_gpu(address, "1002", "74a1")
        self.assertEqual({}, self.in_use(CARD, other, third))
        self.open(CARD, 812, b"/usr/bin/nvidia-persistenced\0--verbose\0")
        self.open(CARD, 813, b"dcgm\0")
        self.open(other, 814, b"rocm-smi\0")
        holders = self.in_use(CARD, other, third)
        self.assertEqual({CARD, other}, holders.keys())
        self.assertEqual("rocm-smi (pid 814)", holders[other])
        self.assertIn("/usr/bin/nvidia-persistenced --verbose (pid 812)", holders[CARD])
        self.assertIn("dcgm (pid 813)", holders[CARD])
        self.assertEqual({}, self.in_use(third))
        self.assertEqual({}, self.in_use())

    def test_what_cannot_be_looked_into_may_have_each(self) -> None:
        for pid in range(812, 819):
            (self.host.roots.proc / str(pid)).mkdir()
            (self.host.roots.proc / f"{pid}/fd").write_text("")  # no folder
        (self.host.path(CARD) / "drm/card0").mkdir(parents=True)
        (self.host.path(CARD) / "drm/card0/dev").write_text("1:3\n")
        self.assertRegex(
            self.in_use(CARD)[CARD], r"^\? \(pid 81., which cannot be looked into\),.*, 2 more$"
        )
        error = self.refused()
        self.assertIn("because what that has open cannot be read", error.reason)
        self.assertIn("CAP_SYS_PTRACE", error.remedy)
        self.assertEqual([], self.kernel.done)


class TestHangs(BindingTestCase):
    def test_a_driver_that_does_not_let_go(self) -> None:
        self.kernel.hang("snd_hda_intel")
        error = self.refused(timeout_s=2)
        self.assertIn(f"unbinding {AUDIO} from snd_hda_intel", error.reason)
        self.assertIn("[gpu]bind_timeout", error.reason)
        # It could be ended after all: everything is as before.
        self.assertEqual(["nvidia", "snd_hda_intel", None], self.drivers())
        self.assertEqual(frozenset(), binding.recorded(self.records))

    def test_one_that_cannot_be_ended(self) -> None:
        process = subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output = b"looking\nunbinding 0000:81:00.0 from nvidia\n"
        hung = child_process.TimedOut("did not answer", output, process)
        with fixtures.MockPatchObject(child_process, "run", side_effect=hung):
            for _ in range(2):
                error = self.refused(timeout_s=1)
                self.assertIn("unbinding 0000:81:00.0 from nvidia does not end", error.reason)
                self.assertIn("boot the host before", error.remedy)
        self.assertEqual({self.card}, binding.recorded(self.records))
        self.refused()
        process.kill()
        process.communicate()
        self.to_guests()
        self.to_host()
        self.assertEqual(["nvidia", "snd_hda_intel", None], self.drivers())


class _SlowAddress(model.PciAddress):
    """An address whose hash takes as long as another thread wants to run."""

    def __hash__(self) -> int:
        time.sleep(0.02)
        return super().__hash__()


class TestLock(BindingTestCase):
    def test_of_a_card_that_threads_meet_first_together(self) -> None:
        inside, most = 0, 0
        together = threading.Barrier(3)
        address = _SlowAddress(0xFFFF, 0, 0, 0)

        def enter(_: int) -> None:
            nonlocal inside, most
            together.wait()
            with binding._alone(address):
                inside += 1
                most = max(most, inside)
                time.sleep(0.05)
                inside -= 1

        with futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(enter, range(3)))
        self.assertEqual(1, most)

    def test_nobody_but_the_script_reads_what_waits_for_the_functions_lock(self) -> None:
        """With real vfio such a read cannot be ended; here nobody answers it."""
        self.useFixture(fixtures.Timeout(60, gentle=True))
        for name in ("driver_override", "sriov_numvfs"):
            path = self.host.path(CARD) / name
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        reason = self.refused(timeout_s=2).reason
        self.assertIn(f"reading driver_override of {CARD} took too long", reason)
        self.assertEqual(frozenset(), binding.recorded(self.records))
        self.assertIsNone(
            passthrough.obstacle(discovery.card_at(self.card, self.host.roots), self.host.roots)
        )


class TestScript(base.BaseTestCase):
    def test_needs_little_of_this_package(self) -> None:
        """Otherwise a guest would wait for imports."""
        code = binding._SCRIPT + (
            "print([name for name in sys.modules if name.split('.')[0] in ('nova_gpu', 'oslo')])"
        )
        packages = b"['nova_gpu.host.processes', 'nova_gpu.host']\n"
        self.assertEqual(packages, child_process.run(child_process.script(code), 60))


class TestNumbers(HostTestCase):
    def numbers(self) -> set[tuple[int, int]]:
        return set(open_devices.numbers(self.gpu_at(CARD), self.host.roots))

    def device(self, path: pathlib.Path, number: str, subsystem: str | None = None) -> None:
        path.mkdir(parents=True)
        (path / "dev").write_text(f"{number}\n")
        if subsystem:
            pci.link(path / "subsystem", self.host.roots.sysfs / "class" / subsystem)

    def test_every_function(self) -> None:
        self.host.add_gpu(CARD, "1002", "74a1", companions=(pci.AUDIO,))
        self.device(self.host.path(AUDIO) / "sound/card0/controlC0", "116:2", "sound")
        self.assertEqual({(226, 1), (226, 129), (116, 2)}, self.numbers())

    def test_what_can_be_taken_away(self) -> None:
        self.host.add_gpu(CARD, "10de", "1e04", driver=None, companions=(pci.AUDIO,))
        self.device(self.host.path(AUDIO) / "sound/card0/input9/event9", "13:73", "input")
        self.assertEqual(set(), self.numbers())

    def test_what_vfio_makes(self) -> None:
        self.host.add_gpu(CARD, "10de", "1e04", driver="vfio-pci", iommu_group=26)
        self.device(self.host.path(CARD) / "vfio-dev/vfio1", "511:0", "vfio-dev")
        self.device(self.host.roots.sysfs / "class/vfio/26", "510:3")
        self.device(self.host.roots.sysfs / "class/vfio/27", "510:4")
        self.assertEqual({(511, 0), (510, 3)}, self.numbers())

    @unittest.skipIf(os.geteuid() != 0, "mknod needs root")
    def test_nvidias_nodes(self) -> None:
        self.host = hosts.Host(self.root / "nvidia", nodes=nodes.Nodes.DEVICES)
        self.host.add_gpu("0000:02:00.0", "10de", "1e04", minor=1)
        self.host.add_gpu(CARD, "10de", "1e04", minor=5)
        self.assertEqual({(195, 5)}, self.numbers())
