# SPDX-License-Identifier: Apache-2.0
"""Runs of :mod:`nova_gpu.host.vfio.rebind_script` in a process of its own, with a deadline."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from nova_gpu.core import json_text
from nova_gpu.host import child, processes
from nova_gpu.host.roots import Roots

_SCRIPT = child.source(pathlib.Path(__file__).with_name("rebind_script.py"), processes)
# How the names of the steps before any binding begin
LOOKS = ("looking", "reading")
_SETTLE_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """The settings for binding and resetting cards.

    ``records`` is the folder in which the cards' former drivers are recorded
    (:mod:`nova_gpu.host.state.former_drivers`). ``timeout_s`` is the limit for all steps with one
    card together.
    """

    roots: Roots
    records: pathlib.Path
    timeout_s: float


def run(request: Mapping[str, Any], means: Means) -> Mapping[str, Any]:
    """Run the script, to find processes that have devices open or to bind; return its answer.

    :param request: keys of the script's task
    :raises Failed: if the script fails, or does not end in time
    """
    output = child.run(child.script(_SCRIPT), means.timeout_s, _words(request, means))
    answer: Mapping[str, Any] = json_text.parse(last_line(output))
    return answer


def _words(request: Mapping[str, Any], means: Means) -> bytes:
    nothing: Mapping[str, Any] = {"devices": (), "overrides": {}, "moves": ()}
    roots = {"sysfs": str(means.roots.sysfs), "proc": str(means.roots.proc)}
    return json.dumps({**roots, "settle_s": _SETTLE_S, **nothing, **request}).encode() + b"\n"


def last_line(output: bytes) -> str:
    """Return the last line of *output*: the script's answer, or the step in which it hangs."""
    return output.decode(errors="replace").strip().rpartition("\n")[2]
