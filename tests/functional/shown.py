# SPDX-License-Identifier: Apache-2.0
"""What ``openstack gpu ...`` prints of a cloud with two hosts, and what the guide shows of it."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from osc_lib import exceptions

from tests.functional import base, sdk

_GUIDE = pathlib.Path(__file__).parents[2] / "doc/source/reference/gpu-commands"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]{15}")
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EXAMPLES = (
    "67c6091b-92d6-4ef4-b8b3-194ffd7b12dc",
    "b2d844e0-ac09-41b1-a66e-5ecb027612b1",
    "0d1f7a3e-5b62-4c0f-9d0b-3c5a8e2f4471",
    "8e8a3c3b-0c3b-4f3c-9a53-5ba5e1e7a001",
)


class ShownTestBase(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._uuids: dict[str, str] = {}
        self.start_host("host1")
        self.start_host("host2", "two-architectures")

    def values(self, command: type, *arguments: str, admin: bool = True) -> list[tuple[Any, ...]]:
        taken, _ = sdk.run(self, command, *arguments, admin=admin)
        return [] if taken is None else list(taken[1])

    def fields(self, command: type, *arguments: str, admin: bool = True) -> dict[str, Any]:
        """As a program reads it"""
        status, printed, _ = sdk.shown(self, command, *arguments, "-f", "json", admin=admin)
        self.assertEqual(0, status)
        return dict(json.loads(printed))

    def documented(
        self, name: str, command: type, *arguments: str, admin: bool = True, status: int = 0
    ) -> None:
        """The guide shows what the command prints, but for what differs from run to run."""
        returned, printed, beside = sdk.shown(self, command, *arguments, admin=admin)
        self.assertEqual(status, returned)
        text = f"{beside}{printed}"
        for uuid in dict.fromkeys(_UUID.findall(text)):
            text = text.replace(uuid, self._uuids.setdefault(uuid, _EXAMPLES[len(self._uuids)]))
        text = _TIME.sub("2026-11-21T22:58:08.392474", text)
        self.assertEqual((_GUIDE / f"{name}.txt").read_text(), text)

    def refusal(self, command: type, *arguments: str, admin: bool = True) -> str:
        refused = self.assertRaises(
            exceptions.CommandError, self.values, command, *arguments, admin=admin
        )
        self.assertNotRegex(str(refused), "\n(?!  )", "a line of its own is indented")
        return str(refused)
