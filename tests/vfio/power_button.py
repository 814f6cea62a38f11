# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.power_button DOMAIN``, in the VM: ends a guest that is to shut down.

The guests' only program knows nothing of ACPI. A line on the output says that this listens.
"""

from __future__ import annotations

import sys
import threading

import libvirt
import libvirt_qemu


def main(name: str) -> None:
    libvirt.virEventRegisterDefaultImpl()
    connection = libvirt.open("qemu:///system")
    domain = connection.lookupByName(name)
    pressed = threading.Event()
    libvirt_qemu.qemuMonitorEventRegister(
        connection, domain, "POWERDOWN", lambda *event: pressed.set(), None
    )
    print("listening", flush=True)
    while not pressed.is_set():
        libvirt.virEventRunDefaultImpl()
    domain.destroy()


if __name__ == "__main__":
    main(sys.argv[1])
