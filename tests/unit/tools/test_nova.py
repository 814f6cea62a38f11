# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys

import testtools

from tests.nova import substituted

_QUESTION = """
from tests.nova import substituted
substituted.substitute()
from nova.virt.libvirt import LibvirtDriver, config, driver
print(LibvirtDriver.__name__, driver.LibvirtDriver.__name__)
from nova_gpu.conf import CONF
CONF.clear()
print(CONF.gpu.sysfs_root, CONF.gpu.nvml)
(each,) = driver.LibvirtDriver._create_idmaps(config.LibvirtConfigGuestUIDMap, ["0:1000:1"])
print(*each)
"""


class SubstitutedTest(testtools.TestCase):
    def test_the_driver_is_ours_and_the_host_has_no_card(self) -> None:
        """In a process of its own, as with Nova's tests."""
        environ = {**os.environ, substituted.SUITE: "unit"}
        environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _QUESTION],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        drivers, options, maps = done.stdout.splitlines()
        self.assertEqual("GPULibvirtDriver GPULibvirtDriver", drivers)
        self.assertRegex(options, r"^/.*/nova-gpu-tests-nova-\S+ False$")
        # The stock method's answer, once over: ours calls its parent, whatever Nova calls that.
        self.assertEqual("0 1000 1", maps)
