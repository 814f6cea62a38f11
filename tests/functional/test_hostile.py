# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes of an instance of its own costs that instance alone, and no one else."""

from __future__ import annotations

import logging
import os
import random

from nova_gpu.core import names
from tests.fixtures.hostile import hostile
from tests.functional import alone, base, kvm
from tests.functional.readings import Server

_SPOT = {"gpus": "= 1", "gpu:preemptible": "0s", "gpu:on_stop": "release"}
_ON_A_TERMINAL = "\x1b]0;mine\x07\x1b[2K\r\u202e\u2028\x9b31m"


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
