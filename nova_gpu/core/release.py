# SPDX-License-Identifier: Apache-2.0
"""The release of this package that a process runs."""

from __future__ import annotations

import functools
import importlib.metadata

UNKNOWN = "unknown"


@functools.cache
def running() -> str:
    """Return the version of this package.

    A service calls it when it starts: the files of a package that is upgraded later tell the next
    version, and the service runs this one until it is restarted.
    """
    try:
        return importlib.metadata.version("nova-gpu")
    except importlib.metadata.PackageNotFoundError:  # it runs from a source tree
        return UNKNOWN
