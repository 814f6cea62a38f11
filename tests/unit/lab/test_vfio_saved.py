# SPDX-License-Identifier: Apache-2.0
"""What of a saved VM needs no VM."""

from __future__ import annotations

import dataclasses
import pathlib
import unittest

from lab.vm import saved
from lab.vm import vm as vms

VM = vms.VM(
    *(pathlib.Path(each) for each in ("/a/emulator-1/qemu", "/a/system-1", "/a/env-1", "/tree")),
    prepared="some.module",
)


class KeyTest(unittest.TestCase):
    """What the state is kept by."""

    def test_the_same_elsewhere(self) -> None:
        other = dataclasses.replace(
            VM,
            emulator=pathlib.Path("/b/emulator-1/qemu"),
            system=pathlib.Path("/b/system-1"),
            environment=pathlib.Path("/b/env-1"),
            tree=pathlib.Path("/other"),
        )
        self.assertEqual(saved._arguments(VM), saved._arguments(other))

    def test_another_where_anything_else_is(self) -> None:
        others = [
            dataclasses.replace(VM, emulator=pathlib.Path("/a/emulator-2/qemu")),
            dataclasses.replace(VM, system=pathlib.Path("/a/system-2")),
            dataclasses.replace(VM, environment=pathlib.Path("/a/env-2")),
            dataclasses.replace(VM, memory_mib=4096),
            dataclasses.replace(VM, prepared="another.module"),
        ]
        for each in others:
            self.assertNotEqual(saved._arguments(VM), saved._arguments(each))
