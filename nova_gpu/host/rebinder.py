# SPDX-License-Identifier: Apache-2.0
"""Runs :mod:`nova_gpu.host.rebind`, with a deadline."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from nova_gpu.host import child
from nova_gpu.host.roots import Roots

SCRIPT = pathlib.Path(__file__).with_name("rebind.py")
# How the steps begin that come before anything is moved
LOOKS = ("looking", "reading")
_SETTLE_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """``records`` is the folder of :mod:`nova_gpu.host.former_drivers`; ``timeout_s`` is what all
    steps of one card may take together."""

    roots: Roots
    records: pathlib.Path
    timeout_s: float


def ask(request: Mapping[str, Any], means: Means) -> Mapping[str, Any]:
    """What the script answers; what *request* leaves out is not to be looked at or done.

    :raises Failed: where it does not
    """
    nothing: Mapping[str, Any] = {"devices": (), "overrides": {}, "moves": ()}
    roots = {"sysfs": str(means.roots.sysfs), "proc": str(means.roots.proc)}
    text = json.dumps({**roots, "settle_s": _SETTLE_S, **nothing, **request})
    output = child.run(child.script(SCRIPT, text), means.timeout_s)
    answer: Mapping[str, Any] = json.loads(last_line(output))
    return answer


def last_line(output: bytes) -> str:
    """What it was at last, of what it printed"""
    return output.decode(errors="replace").strip().rpartition("\n")[2]
