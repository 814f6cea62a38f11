# SPDX-License-Identifier: Apache-2.0
"""The version of the package, for the pages: that which pbr gives a wheel of this tree."""

from __future__ import annotations

from pbr import packaging

from lab import version


def of_package() -> str:
    """Return the version by git's tags, or by a source package, else what comes next."""
    declared = version.declared()
    try:
        return str(packaging.get_version("nova-gpu", declared))
    except Exception:
        return declared
