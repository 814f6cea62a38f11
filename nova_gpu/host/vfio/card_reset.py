# SPDX-License-Identifier: Apache-2.0
"""Reset of a card after a guest, function by function or as a whole bus. Needs root.

The file ``reset`` of a function may exist and be useless: the kernel looks for methods when it
finds the function, and function 0 is found while it is still alone on its bus. Its method ``bus``
is then refused ever after, because a reset of the bus would affect its neighbours
(drivers/pci/pci.c, pci_parent_bus_reset; Documentation/ABI/testing/sysfs-bus-pci, reset_method).
Such a card is reset with its whole bus by VFIO, to which all of its functions are bound then. VFIO
also does that by itself when the last guest releases the card (drivers/vfio/pci/vfio_pci_core.c,
vfio_pci_dev_set_try_reset), but it does not report whether it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from nova_gpu.core import exception, json_text, model
from nova_gpu.host import child
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import open_devices, rebinder
from nova_gpu.host.vfio.rebinder import Means

SCRIPT = child.source(pathlib.Path(__file__).with_name("reset_script.py"))

_BUS = "bus"
_LOOK_AGAIN_S = 0.2
_REMEDY = "see the kernel's log about it; if the card stays in this state, boot the host"
# Killed processes that have not ended: nothing else may be tried with such a card.
_hanging: dict[model.PciAddress, subprocess.Popen[bytes]] = {}


def reset(gpu: model.GPU, means: Means, *, required: bool = True) -> None:
    """Reset all functions of *gpu*, which must be bound to VFIO and not used by a guest.

    :param required: if false, a card that no method can reset passes, if it answers
    :raises NotClean: if a function is not reset, or does not answer afterwards
    """
    functions, roots = gpu.functions, means.roots
    if not roots.shows_all_processes():
        address = str(gpu.address)
        raise exception.NotClean(address, open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    request = {
        "devices": f"{roots.sysfs}/bus/pci/devices",
        "functions": [str(function) for function in functions],
        "vfio": str(roots.dev / "vfio"),
        "wait_s": means.timeout_s / 2,
    }
    try:
        own = resets_functions(gpu, roots)
        error = _in_use(gpu, means)
        if error is None:
            error = _ask(gpu, {**request, "way": "functions" if own else "bus"}, means)
        if error and not own and not required:
            error = _ask(gpu, {**request, "way": None}, means)
    except OSError as failure:
        error = str(failure)
    if error:
        raise exception.NotClean(str(gpu.address), error, _REMEDY)


def resets_functions(gpu: model.GPU, roots: Roots) -> bool:
    """Return whether each function of the card is reset alone; otherwise its whole bus is.

    :raises OSError: if sysfs cannot be read
    """
    return all(_has_method(function, roots) for function in gpu.functions)


def _in_use(gpu: model.GPU, means: Means) -> str | None:
    """Wait half of ``means.timeout_s``, as QEMU takes time to end; return who has the card open."""
    deadline = time.monotonic() + means.timeout_s / 2
    try:
        while who := open_devices.in_use([gpu.address], means).get(gpu.address):
            if time.monotonic() > deadline:
                return f"it is still in use by {open_devices.as_text(who)}"
            time.sleep(_LOOK_AGAIN_S)
    except child.Failed as error:
        return f"the search for processes that have it open {error}"
    return None


def _has_method(function: model.PciAddress, roots: Roots) -> bool:
    """Return whether the function can be reset by its file ``reset``."""
    device = sysfs.device(function, roots)
    names = os.listdir(device)
    if "reset" not in names:
        return False
    if "reset_method" not in names:  # before Linux 5.15
        return _is_alone(device)
    methods = sysfs.attribute(device, "reset_method").split()
    return any(method != _BUS for method in methods) or (_BUS in methods and _is_alone(device))


def _is_alone(device: str) -> bool:
    """Return whether the function is the only one on its bus."""
    neighbours = 0
    for name in os.listdir(os.path.dirname(os.path.realpath(device))):
        with contextlib.suppress(exception.InvalidPciAddress):
            model.PciAddress.parse(name)
            neighbours += 1
    return neighbours == 1


def _ask(gpu: model.GPU, request: Mapping[str, Any], means: Means) -> str | None:
    """Run the reset script with *request*; return why it failed, ``None`` if it succeeded."""
    if (before := _hanging.get(gpu.address)) is not None:
        if before.poll() is None:
            return "an earlier reset of it does not end"
        del _hanging[gpu.address]
    command = child.script(SCRIPT, json.dumps(request))
    try:
        answer = json_text.parse(rebinder.last_line(child.run(command, means.timeout_s)))
    except child.TimedOut as failure:
        _hanging[gpu.address] = failure.process
        return f"{rebinder.last_line(failure.output)} did not end in {means.timeout_s:g} s"
    except child.Failed as failure:
        return f"the process that resets it {failure}"
    error: str | None = answer["error"]
    return error
