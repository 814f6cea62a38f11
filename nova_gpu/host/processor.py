# SPDX-License-Identifier: Apache-2.0
"""This host's first processor, as the kernel describes it."""

from __future__ import annotations

import contextlib
import dataclasses
import re

from nova_gpu.host.roots import Roots

_SIZES = re.compile(rb"^address sizes\s*:\s*(\d+) bits physical", re.MULTILINE)
_VENDOR = re.compile(rb"^vendor_id\s*:\s*(\S+)", re.MULTILINE)
_FAMILY = re.compile(rb"^cpu family\s*:\s*(\d+)$", re.MULTILINE)
_FLAGS = re.compile(rb"^flags\s*:(.*)$", re.MULTILINE)
# More than the kernel writes for one processor; all of them can take half a megabyte.
_FIRST = 16384


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The facts of a processor; ``None`` for a fact that the kernel does not report.

    On other architectures than x86 the kernel reports none. ``address_bits`` is the width of
    physical addresses, ``vendor`` is as in /proc/cpuinfo (``AuthenticAMD``). ``gib_pages``: the
    processor has pages of 1 GiB, or it is unknown whether it has.
    """

    address_bits: int | None = None
    vendor: str | None = None
    family: int | None = None
    gib_pages: bool = True

    @property
    def is_amd(self) -> bool:
        return self.vendor == "AuthenticAMD"


def of_host(roots: Roots) -> Processor:
    """Return the facts of this host's first processor; one that cannot be read is ``None``."""
    text = b""
    with contextlib.suppress(OSError), (roots.proc / "cpuinfo").open("rb") as file:
        text = file.read(_FIRST)
    vendor, flags = _VENDOR.search(text), _FLAGS.search(text)
    return Processor(
        _number(_SIZES.search(text)),
        vendor[1].decode(errors="replace") if vendor else None,
        _number(_FAMILY.search(text)),
        flags is None or b"pdpe1gb" in flags[1].split(),
    )


def _number(match: re.Match[bytes] | None) -> int | None:
    return int(match[1]) if match else None
