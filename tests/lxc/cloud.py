# SPDX-License-Identifier: Apache-2.0
"""The cloud of every test, on a libvirtd of its own with its LXC driver."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from collections.abc import Sequence

import fixtures

from lab.cloud import libvirtd
from tests.cloud import base, leftovers
from tests.fixtures import hosts
from tests.lxc import place

IMAGE = base.IMAGE
ID_MAPS = ["0:100000:65536"]


class Cloud(base.Cloud):
    FLAVOR = {"memory_mb": 64, "vcpu": 1, "disk": 1, "ephemeral": 0}  # noqa: RUF012

    # What a test class may say of its host
    UID_MAPS: Sequence[str] = ID_MAPS
    MACHINE = "fermi-8"

    def setUp(self) -> None:
        if place.FOLDER not in os.environ:
            self.skipTest("needs a libvirtd of its own: run python -m tests.lxc")
        # It runs already; the tests are in its mount namespace.
        self._lv = libvirtd.PrivateLibvirtd(place.folder(), ())
        self._state = pathlib.Path(self.useFixture(fixtures.TempDir(str(place.folder()))).path)
        self._state.chmod(0o711)
        self._host = hosts.build(self.MACHINE, self._state / "host")
        self._expect_nothing_left()
        super().setUp()

    def serve_images(self) -> None:
        content = (place.folder() / "image.raw").read_bytes()
        self.glance._imagedata[IMAGE] = content
        self.glance.images[IMAGE]["size"] = len(content)

    def set_host_flags(self) -> None:
        self.flags(use_cow_images=False)
        self.flags(
            virt_type="lxc",
            connection_uri="lxc:///",
            images_type="raw",
            uid_maps=list(self.UID_MAPS),
            gid_maps=list(self.UID_MAPS),
            # A guest that does not end by itself within this is a fault, but for one test.
            wait_soft_reboot_seconds=int(self.PATIENCE_S),
            group="libvirt",
        )
        self.flags(
            sysfs_root=str(self._host.roots.sysfs),
            proc_root=str(self._host.roots.proc),
            cdi_spec_dirs=[str(self._state / "cdi")],
            nvml=False,
            group="gpu",
        )

    def _expect_nothing_left(self) -> None:
        """Registered first and so run last, when every service has ended."""
        lv = self._lv
        # Those of another libvirtd's guests look like ours, once we have had one of that name.
        self._before = before = {*lv.leftovers(), *leftovers.guest_groups()}
        nodes = list(leftovers.nodes())

        def expect() -> None:
            deadline = time.monotonic() + self.PATIENCE_S
            while set(lv.leftovers()) - before and time.monotonic() < deadline:
                time.sleep(0.2)
            left = set(lv.leftovers()) - before
            for each in leftovers.remove_empty_groups(left):
                print(f"libvirt left the empty {each}; its log ends so:\n{lv.log_end()}")
                left.remove(each)
            for domain in lv.domains():
                for verb in ("destroy", "undefine"):
                    subprocess.run(lv.enter(["virsh", "-qc", "lxc:///", verb, domain]))
            self.assertEqual([], sorted(left), "left behind by this test")
            self.assertEqual(nodes, list(leftovers.nodes()), "the host's device nodes")

        self.addCleanup(expect)
