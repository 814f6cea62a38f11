# SPDX-License-Identifier: Apache-2.0
"""Writing sysfs, with a deadline."""

from __future__ import annotations

import pathlib

from nova_gpu.host import child

SCRIPT = pathlib.Path(__file__).with_name("write_attribute.py")


def write(path: str, text: str, timeout_s: float) -> None:
    """:raises Failed: where the kernel refuses, or does not return in time"""
    try:
        child.run(child.script(SCRIPT, path, text), timeout_s)
    except child.Failed as error:
        raise child.Failed(f"writing {text} to {path} {error}") from error
