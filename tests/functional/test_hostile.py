# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes of an instance of its own costs that instance alone, and no one else."""

from __future__ import annotations

import logging
import os
import random
from typing import Any

from nova_gpu.core import names
from osc_gpu.fleet import preemption
from tests.fixtures.hostile import hostile
from tests.functional import alone, base, kvm, sdk
from tests.functional.readings import Server

_SPOT = {"gpus": "= 1", "gpu:preemptible": "0s", "gpu:on_stop": "release"}
# In UTC the first is of the year 10000, and the second of the year 0.
_BEYOND = ("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00")
_ON_A_TERMINAL = "\x1b]0;mine\x07\x1b[2K\r\u202e\u2028\x9b31m"


class MetadataTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.spot = self.boot(self.flavor(**_SPOT))

    def write(self, server: Server, **metadata: str) -> None:
        """As a member of the project does"""
        url = f"/servers/{server['id']}/metadata"
        body = {"metadata": {f"gpu:{key}": value for key, value in metadata.items()}}
        self.api.api_post(url, body, check_response_status=[200])

    def preempt(self, *arguments: str) -> tuple[list[tuple[Any, ...]], str]:
        words = *arguments, "--project", self.api.project_id
        (_, rows), said = sdk.run(self, preemption.Preempt, *words)
        return list(rows), said

    def test_a_time_beyond_all_years(self) -> None:
        other = self.boot(self.gpu_flavor(3))
        for each in _BEYOND:
            self.write(self.spot, preempt_at=each, preempt_for="x")
            self.restart_host("host1")
            self.period()
            self.assertInventory(reserved=0, used=4)
            self.assertGPUs(last := self.boot(self.gpu_flavor(4)), base.ALL[4:])
            # The rest of the host goes on, and the planner has an instance that was told nothing.
            (row,), _ = self.preempt(self.flavor(f"one{each[:4]}", gpus="1"))
            self.assertEqual((self.spot["id"], ""), (row[0], row[6]))
            self._delete_server(last)
        self.assertGPUs(other, base.ALL[1:4])

    def test_no_service_tells_what_it_says(self) -> None:
        self.sent()
        for number in range(3):
            self.write(
                self.spot,
                preempt_at=f"2199-01-0{number + 1}T00:00:00Z",
                preempt_for=_ON_A_TERMINAL,
            )
            self.period()
        self.assertEqual([], self.sent())


class _Lines(logging.Handler):
    """What is logged from now on"""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found += record.getMessage().split("\n")


class PeriodTest(alone.Alone, base.GPUServersTestBase):
    """What instances are called, and what they and their images say, in the host's periods"""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.servers = [self.boot(self.flavor(**_SPOT)) for _ in range(6)]
        self.lines = _Lines()
        logger = logging.getLogger("nova_gpu")
        logger.addHandler(self.lines)
        self.addCleanup(logger.removeHandler, self.lines)

    def write(self, server: Server, chance: random.Random) -> None:
        instance = self.instance(server)
        instance.display_name = instance.hostname = hostile(chance)
        instance.display_description = hostile(chance)
        keys = names.PREEMPT_AT, names.PREEMPT_FOR, hostile(chance)
        instance.metadata = {key: hostile(chance) for key in keys}
        images = names.IMAGE_ON_STOP, f"image_{hostile(chance)}"
        instance.system_metadata |= {key: hostile(chance) for key in images}
        instance.save()

    def test_many(self) -> None:
        """The ordinary run has 300 values of each field; the long one as many as it is told."""
        examples = int(os.environ.get("NOVA_GPU_FUZZ_EXAMPLES", 0))
        chance = random.Random(None if examples else 0)
        self.sent()
        for number in range((examples or 300) // len(self.servers)):
            for server in self.servers:
                self.write(server, chance)
            if number % 10 == 0:
                self.restart_host("host1")
            self.period()
            self.assertInventory(used=len(self.servers))
        for line in self.lines.found:
            self.assertTrue(line.isprintable(), repr(line))
        self.assertEqual([], self.sent())
        last = self.boot(self.flavor(gpus="= 2"))
        self.assertGPUs(last, base.ALL[6:])


class ImageTest(kvm.KVMServersTestBase):
    """Free text of an image's properties, on the way to the log, the fault and the guest."""

    # hw_machine_type is the only free text that a module reads and prints; the names of traits are
    # read as the image's, too.
    PROPERTIES = (
        {"hw_machine_type": f"pc {_ON_A_TERMINAL}\nCRITICAL nova [-] forged"},
        {"hw_machine_type": "A" * 255},
        {f"trait:CUSTOM_GPU{_ON_A_TERMINAL}": "required"},
    )

    def test_what_is_printed(self) -> None:
        lines = _Lines()
        logger = logging.getLogger("nova_gpu")
        logger.addHandler(lines)
        self.addCleanup(logger.removeHandler, lines)
        self.start_host()
        plain = self.boot(self.gpu_flavor(1))
        for properties in self.PROPERTIES:
            image = self.image(**properties)
            fault = self.boot_refused(self.gpu_flavor(1), image_uuid=image)
            self.assertTrue(fault.isprintable(), fault)
            if "hw_machine_type" in properties:
                self.refused({"rebuild": {"imageRef": image}}, plain)
        for line in lines.found:
            self.assertTrue(line.isprintable(), repr(line))


class FlavorTest(base.GPUServersTestBase):
    # With which Nova's API judges no names of extra specs
    microversion = "2.60"

    def test_a_name_that_ends_in_a_line_feed(self) -> None:
        """The API's schema takes it, and Nova's scheduler takes it for ``resources:PGPU``."""
        self.start_host()
        for name in ("resources:PGPU\n", "resources1:VGPU\n"):
            fault = self.boot_refused(self.flavor(**{name: "1"}))
            self.assertIn("a line feed ends its name", fault)
            self.assertTrue(fault.isprintable())
        self.assertInventory(used=0)
