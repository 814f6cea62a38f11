# SPDX-License-Identifier: Apache-2.0
"""The Nova releases that the driver supports, and the signatures of its overrides."""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any, TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# Nova 2024.1, 2025.1, 2025.2, 2026.1 and 2026.2. The driver overrides private methods, which
# another release may have changed, or may no longer call.
RELEASES = (29, 31, 32, 33, 34)

Class = TypeVar("Class", bound=type)


def of_parent(cls: Class) -> Class:
    """Let each override in *cls* show the signature that the method has in this Nova release.

    This is a class decorator for the driver. Nova's own tests compare a driver's signatures with
    those of ``ComputeDriver``.
    """
    parent = cls.__mro__[1]
    for name, method in vars(cls).items():
        if inspect.isfunction(method):
            stated: Any = method
            stated.__signature__ = inspect.signature(getattr(parent, name))
    return cls


def nova_release() -> int:
    return int(importlib.metadata.version("nova").partition(".")[0])


def untested() -> str | None:
    """Return a warning if nova-gpu was not tested with the installed Nova, else ``None``."""
    if nova_release() in RELEASES:
        return None
    return (
        f"Nova is {importlib.metadata.version('nova')}, and this nova-gpu was tested with "
        f"{', '.join(map(str, RELEASES))}; install the nova-gpu that goes with it."
    )


def say_if_untested() -> None:
    """Log an error at service start if nova-gpu was not tested with the installed Nova release."""
    if message := untested():
        LOG.error("%s Until then nova-gpu may miss ways in which Nova starts guests.", message)
