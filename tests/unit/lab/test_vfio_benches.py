# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import unittest

from lab.vm import vm as vms
from tests.vfio import benches

PLAIN = vms.VM(pathlib.Path("qemu"), pathlib.Path("s"), pathlib.Path("e"), pathlib.Path("t"))


class BenchesTest(unittest.TestCase):
    def test_those_of_folders(self) -> None:
        self.assertEqual(benches.ONE, benches.of(["tests/vfio", "tests/vgpu/"]))
        self.assertEqual(benches.PAIR, benches.of(["tests/moves/"]))
        self.assertEqual(benches.UEFI, benches.of(["tests/bars"]))
        self.assertEqual(benches.TRIO, benches.of(["tests/takeover"]))
        self.assertRaises(ValueError, benches.of, ["tests/vfio", "tests/moves"])

    def test_what_one_sends_the_other_receives(self) -> None:
        one, other = (each.line for each in benches._joined(PLAIN, PLAIN))
        assert one and other
        self.assertEqual((one.own_port, one.other_port), (other.other_port, other.own_port))
        self.assertNotEqual(one.own_port, one.other_port)
        self.assertNotEqual(one.address, other.address)
        self.assertEqual([], [each for each in _macs(one) if each in _macs(other)])

    def test_two_hosts_have_two_names(self) -> None:
        said = [
            " ".join(each.arguments(pathlib.Path("o"), pathlib.Path("c")))
            for each in benches._joined(*benches._numbered(PLAIN, 2))
        ]
        for number, text in enumerate(said, start=1):
            self.assertIn(f"labvm.name=labvm{number} labvm.address=10.0.3.{number}", text)


def _macs(line: vms.Line) -> list[str]:
    return [word for text in line.arguments() for word in text.split(",") if "mac=" in word]
