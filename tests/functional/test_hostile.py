# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes of an instance of its own costs that instance alone, and no one else."""

from __future__ import annotations

import logging

from tests.functional import base, kvm

_ON_A_TERMINAL = "\x1b]0;mine\x07\x1b[2K\r\u202e\u2028\x9b31m"


class _Lines(logging.Handler):
    """What is logged from now on"""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts += record.getMessage().split("\n")


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
        for line in lines.texts:
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
