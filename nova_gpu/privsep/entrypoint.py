# SPDX-License-Identifier: Apache-2.0
"""The decorator of the privileged functions, which refuses calls from another release.

oslo.privsep starts the privileged process again when it has died. If this package was upgraded
since nova-compute started, that process is of another release, whose functions may do other things.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import nova.privsep

from nova_gpu.core import exception, release

_P = ParamSpec("_P")
_R = TypeVar("_R")


def entrypoint(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let the privileged process run *function* for nova-compute of the same release.

    :raises AnotherRelease: when nova-compute of another release calls it
    """

    @functools.wraps(function)
    def checked(*args: Any, caller: str, **kwargs: Any) -> _R:
        own = release.running()
        # Without the package's metadata, as in a source tree, nothing tells that they differ.
        if caller != own and release.UNKNOWN not in (caller, own):
            raise exception.AnotherRelease(caller, own)
        return function(*args, **kwargs)

    privileged = nova.privsep.sys_admin_pctxt.entrypoint(checked)

    # nova-compute calls it without *caller*; the privileged process finds it by its name, and calls
    # it with what nova-compute sent.
    @functools.wraps(function)
    def call(*args: Any, caller: str | None = None, **kwargs: Any) -> Any:
        try:
            return privileged(*args, caller=caller or release.running(), **kwargs)
        except ImportError as error:  # the privileged process has no function of this name
            raise exception.AnotherRelease(release.running(), release.UNKNOWN) from error

    vars(call).update(vars(privileged))  # what marks it as privileged
    return cast("Callable[_P, _R]", call)
