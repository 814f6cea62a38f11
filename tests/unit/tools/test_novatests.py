# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys

import testtools

from tools.novatests import compared, substituted
from tools.testing.outcome import Failure, Outcome, Skip

_QUESTION = """
from tools.novatests import substituted
substituted.substitute()
from nova.virt.libvirt import LibvirtDriver, config, driver
print(LibvirtDriver.__name__, driver.LibvirtDriver.__name__)
from nova_gpu.conf import CONF
CONF.clear()
print(CONF.gpu.sysfs_root, CONF.gpu.nvml)
(each,) = driver.LibvirtDriver._create_idmaps(config.LibvirtConfigGuestUIDMap, ["0:1000:1"])
print(*each)
"""


def _failures(*tests: str) -> tuple[Failure, ...]:
    return tuple(map(Failure, tests))


class ComparedTest(testtools.TestCase):
    def test_only_what_passes_with_stock_alone_counts(self) -> None:
        ours = Outcome(1, _failures("fails", "regressed", "flaky"), (Skip("skipped", "no"),))
        stock = Outcome(2, _failures("fails"), (Skip("skipped", "no"),))
        again = Outcome(1, _failures("regressed"))
        self.assertEqual({"regressed"}, compared.passed_by_stock_alone(ours, stock, again))
        self.assertEqual(set(), compared.passed_by_stock_alone(Outcome(5), Outcome(), Outcome()))

    def test_tests_that_were_not_run(self) -> None:
        ours = Outcome(3, _failures("fails"), (Skip("skipped", "no"),))
        self.assertEqual([0, 2], [compared.lost(ours, expected) for expected in (5, 7)])

    def test_in_a_line(self) -> None:
        # stestr fails where all that it runs are skipped.
        skips = (Skip("skipped", "no"), Skip("another", "no"))
        ours, stock = Outcome(3, skips=skips), Outcome(0, _failures("stestr"), skips)
        self.assertEqual(
            "unit: 3 pass with our driver, 2 do not (2 with the stock driver); "
            "none pass with the stock driver alone",
            compared.line("unit", ours, stock, set(), 0),
        )


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
        self.assertRegex(options, r"^/.*/nova-gpu-novatests-\S+ False$")
        # The stock method's answer, once over: ours calls its parent, whatever Nova calls that.
        self.assertEqual("0 1000 1", maps)
