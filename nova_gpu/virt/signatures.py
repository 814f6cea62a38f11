# SPDX-License-Identifier: Apache-2.0
"""Which Nova the driver overrides, and what an override says of its parameters."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def of_parent(cls: Class) -> Class:
    """A class decorator: whoever asks for the parameters of an override gets those of the method
    that it overrides, of whichever release Nova is. Nova's tests compare them with those of its
    ``ComputeDriver``."""
    parent = cls.__mro__[1]
    for name, method in vars(cls).items():
        if inspect.isfunction(method):
            stated: Any = method
            stated.__signature__ = inspect.signature(getattr(parent, name))
    return cls
