# SPDX-License-Identifier: Apache-2.0
"""libvirt's binding, in the place of it on a machine that has none: no daemon answers."""

from __future__ import annotations

from typing import Any, NoReturn


class libvirtError(Exception):
    def get_error_code(self) -> int:
        return 38  # VIR_ERR_SYSTEM_ERROR

    def get_error_message(self) -> str:
        return str(self)


def _open(*_: Any, **__: Any) -> NoReturn:
    raise libvirtError("there is no libvirt on this machine")


open = openAuth = openReadOnly = _open


def _nothing(*_: Any, **__: Any) -> int:
    return 0


registerErrorHandler = virEventRegisterDefaultImpl = _nothing


def __getattr__(name: str) -> int:
    """Its many numbers, with which nothing is asked"""
    if name.startswith("VIR_"):
        return 0
    raise AttributeError(name)
