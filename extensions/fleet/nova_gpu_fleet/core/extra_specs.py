# SPDX-License-Identifier: Apache-2.0
"""The extra specs of flavors that commands on many instances read."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Mapping

from nova_gpu.core import exception
from nova_gpu.core.flavor import parsers
from nova_gpu.core.flavor.declaration import ExtraSpec, Option, choice
from nova_gpu_fleet.core import names, preemptible


class Consent(enum.StrEnum):
    """Whether a plan that makes room may move an instance: live, cold as well, or not at all."""

    LIVE = "live"
    COLD = "cold"
    NONE = "none"


MOVE = choice(
    names.MOVE,
    "How a plan that makes room may move the instance: ``live``, the default, while it runs, which "
    "only KVM guests with vGPUs can; ``cold``, also by shutting it down, moving and starting it; "
    "``none``, not at all. A stopped KVM guest may be moved unless this is ``none``.",
    Consent,
    option=Option("--move", "How a plan that makes room may move an instance (default: live)"),
    reason="it does not say how an instance may be moved",
)
ON_STOP_MOVE = ExtraSpec(
    names.ON_STOP_MOVE,
    "Whether an instance that gave its GPUs back may start on another host if its own has none "
    "free. With ``true`` ``openstack gpu start`` then shelves and unshelves it; the default is "
    "``false``.",
    parsers.ALLOWED_SWITCH,
    lambda name, text: parsers.parse_switch(name, {name: text}, otherwise=False),
    choices=parsers.SWITCH,
    option=Option(
        "--on-stop-move",
        "Whether an instance that gave its GPUs back may start on another host (default: false)",
    ),
)
PREEMPTIBLE = ExtraSpec(
    names.PREEMPTIBLE,
    "The instance is preemptible: after a minimum time with its GPUs, ``30m``, and a notice, "
    "``openstack gpu preempt`` may take them for instances that are not preemptible.",
    preemptible.ALLOWED_TIMES,
    lambda name, text: preemptible.parse_time(text),
    option=Option(
        "--preemptible",
        "Let openstack gpu preempt take an instance's GPUs for others, after it has had them "
        "for this time (30m, 2h, ...)",
        "<least-time>",
    ),
    agree=preemptible.Preemptible.of,
    suffix=preemptible.in_words,
)
ON_PREEMPT = ExtraSpec(
    names.ON_PREEMPT,
    "What happens to a preempted instance: it is stopped (``stop``, the default), for which "
    "its flavor must have ``gpu:on_stop=release``, or deleted (``delete``).",
    parsers.allowed(preemptible.End),
    lambda name, text: preemptible.parse_end(text),
    choices=tuple(preemptible.End),
    option=Option(
        "--on-preempt",
        "What happens to a preempted instance: it is stopped (default), for which its flavor "
        "needs --on-stop release, or it is deleted",
    ),
    agree=preemptible.Preemptible.of,
)
WORDS = (MOVE, ON_STOP_MOVE, PREEMPTIBLE, ON_PREEMPT)


def start_remedy(extra_specs: Mapping[str, str]) -> str | None:
    """Return how the GPUs of another host are had by an instance of a flavor, if it lets them."""
    with contextlib.suppress(exception.InvalidExtraSpec):
        if ON_STOP_MOVE.of(extra_specs):
            return (
                "openstack gpu start has it come to another host; or start it when some are free "
                "here"
            )
    return None
