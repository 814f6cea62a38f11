# SPDX-License-Identifier: Apache-2.0
"""Where nova-compute dies: before or after a function, at a step, or at any time.

A *step* is one effect outside of the process: a message to another service, a request to Placement,
a word to libvirt that changes something, a program that is run.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MANAGER = "nova.compute.manager:ComputeManager"
_TRACKER = "nova.compute.resource_tracker:ResourceTracker"
_DRIVER = "nova.virt.libvirt.driver:LibvirtDriver"
_OURS = "nova_gpu.virt.driver:GPULibvirtDriver"
_GUEST = "nova.virt.libvirt.guest:Guest"
_RELEASES = "nova_gpu.virt.lifecycle.releases:Releases"
_CLEANING = "nova_gpu.virt.lifecycle.cleaning:Cleaning"
_CARDS = "nova_gpu.virt.delivery.container_nodes:ContainerNodes"

_START = (
    f"{_OURS}._get_guest_config",
    f"{_CARDS}.prepare",
    f"{_GUEST}.create",
    f"{_GUEST}.launch",
    f"{_DRIVER}._create_domain_setup_lxc",
)
_END = (
    f"{_DRIVER}._destroy",
    f"{_OURS}._undefine_domain",
    f"{_RELEASES}._release_all",
    f"{_CLEANING}.clean",
    f"{_DRIVER}.cleanup",
)

# What is wrapped, for each operation; each function gives two points, before it and after it.
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "spawn": (
        f"{_TRACKER}.instance_claim",
        f"{_MANAGER}._allocate_network",
        f"{_OURS}.spawn",
        f"{_DRIVER}._create_image",
        f"{_OURS}._create_domain_cleanup_lxc",
        *_START,
    ),
    "destroy": (
        f"{_MANAGER}._shutdown_instance",
        f"{_DRIVER}.destroy",
        f"{_OURS}._teardown_container",
        f"{_DRIVER}.delete_instance_files",
        f"{_MANAGER}._complete_deletion",
        *_END,
    ),
    "reboot": (
        f"{_DRIVER}.reboot",
        f"{_OURS}._hard_reboot",
        f"{_DRIVER}._destroy",
        f"{_DRIVER}._create_guest_with_network",
        *_START,
    ),
    "resize": (
        f"{_TRACKER}.resize_claim",
        f"{_MANAGER}._prep_resize",
        f"{_OURS}.migrate_disk_and_power_off",
        f"{_MANAGER}._finish_resize",
        f"{_OURS}.finish_migration",
        *_START,
    ),
    "confirm": (
        f"{_DRIVER}.confirm_migration",
        f"{_DRIVER}._cleanup_resize",
        f"{_TRACKER}.drop_move_claim_at_source",
        f"{_MANAGER}._delete_allocation_after_move",
    ),
    "revert": (
        f"{_DRIVER}.destroy",
        f"{_TRACKER}.drop_move_claim_at_dest",
        f"{_MANAGER}._finish_revert_resize",
        f"{_OURS}.finish_revert_migration",
        *_START,
    ),
}

# Of libvirt's, what changes something.
_LIBVIRT = (
    ("libvirt:virConnect", ("defineXML",)),
    ("libvirt:virDomain", ("createWithFlags", "destroy", "shutdown", "undefineFlags")),
)
_EFFECTS = (
    "tests.cloud.bus:Driver.send",
    "keystoneauth1.session:Session.request",
    "oslo_concurrency.processutils:execute",
    *(f"{owner}.{name}" for owner, names in _LIBVIRT for name in names),
)


def named(operation: str) -> Iterator[str]:
    for function in FUNCTIONS[operation]:
        yield f"before {function.partition(':')[2]}"
        yield f"after {function.partition(':')[2]}"


class Trap:
    """In the compute service's process: set to a point, it kills the process there, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: str | None = None
        self._steps = 0
        for function in {function for functions in FUNCTIONS.values() for function in functions}:
            _wrap(function, functools.partial(self._around, function.partition(":")[2]))
        for function in _EFFECTS:
            _wrap(function, self._step)

    def set(self, point: str | None) -> int:
        """``before X``, ``after X``, ``step 17``, or ``None``; how many steps were taken before."""
        with self._lock:
            steps, self._steps = self._steps, 0
            self._set = point
        return steps

    def _reached(self, point: str) -> None:
        if point == self._set:
            os.kill(os.getpid(), signal.SIGKILL)

    def _around(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reached(f"before {name}")
        result = function(*args, **kwargs)
        self._reached(f"after {name}")
        return result

    def _step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._steps += 1
            number = self._steps
        result = function(*args, **kwargs)
        self._reached(f"step {number}")
        return result


def place(path: str) -> tuple[Any, str]:
    """What has the function of that path, and its name there"""
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for attribute in outer:
        owner = getattr(owner, attribute)
    return owner, last


def _wrap(path: str, around: Callable[..., Any]) -> None:
    """:raises AttributeError: where Nova no longer has it: then a point would never be reached"""
    owner, last = place(path)
    function = getattr(owner, last)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(function, *args, **kwargs)

    setattr(owner, last, wrapped)
