# SPDX-License-Identifier: Apache-2.0
"""Operations that guests with GPUs cannot do, and what to do instead.

The compute host raises these texts when it refuses an operation. Nova shows the error to
administrators only; so that the instance's user reads the reason too, ``openstack gpu explain``
derives it from the flavor.
"""

from __future__ import annotations

from collections.abc import Iterator

SUSPEND_CONTAINER = "the state of a container cannot be saved; pause, stop or shelve the instance"
_SUSPEND_GPUS = "the state of the guest's GPUs cannot be saved"
SUSPEND_GPUS = f"{_SUSPEND_GPUS}; stop or shelve the instance"
SNAPSHOT_GPUS = (
    f"{_SUSPEND_GPUS}; stop the instance for the snapshot: this host takes none while it runs"
)
RESCUE_CONTAINER = (
    "a container is not started from another disk than its own; make an image of the instance "
    "(openstack server image create) and look into that, or rebuild it"
)
COLD_REMEDY = "migrate the instance cold (openstack server migrate, without --live-migration)"
_STAYS = f"cannot be moved to another host while the guest runs; {COLD_REMEDY}"
LIVE_CARDS = f"The state of a passed through GPU {_STAYS}"
LIVE_CONTAINER = f"A container with GPUs {_STAYS}"
_LIVE_PARTS = (
    "A running guest with vGPUs moves only where the drivers of both hosts can save their state; "
    f"else {COLD_REMEDY}"
)

_IN_CONTAINERS = {
    "suspend": SUSPEND_CONTAINER,
    "rescue": RESCUE_CONTAINER,
    "live-migration": LIVE_CONTAINER,
}
_IN_VMS = {"suspend": SUSPEND_GPUS, "createImage": SNAPSHOT_GPUS}
# Actions that need GPUs of a host: of a new host, or of the instance's own
_MOST_OFTEN = {
    "resize": "no host has room for what the new flavor asks for",
    "migrate": "no other host has room for what the flavor asks for",
    "evacuate": "no other host has room for what the flavor asks for",
    "unshelve": "no host has room for what the flavor asks for",
    "start": (
        "its host cannot give it GPUs now: neither those that it kept, nor as many others if it "
        "gave them back when it was stopped; shelve and unshelve it to move it to a host that can "
        "(openstack gpu start does that if its flavor permits it)"
    ),
    "rebuild": (
        "its host cannot give it GPUs now: neither those that it has, nor others if it has none"
    ),
}


def why(action: str, *, container: bool | None, whole: bool) -> Iterator[str]:
    """Yield the reasons why *action* on an instance with GPUs is refused, or fails most often.

    :param action: a name of Nova's instance actions
    :param container: whether its guest is a container; ``None`` if unknown
    :param whole: whether it has whole cards, not vGPUs only
    """
    reasons = {}
    if container is not False:
        reasons["in a container"] = _IN_CONTAINERS.get(action)
    if container is not True:
        live = LIVE_CARDS if whole else _LIVE_PARTS
        reasons["in a VM"] = live if action == "live-migration" else _IN_VMS.get(action)
    for guest, reason in reasons.items():
        if reason:
            yield reason if container is not None else f"{guest}: {reason}"
    if action in _MOST_OFTEN:
        yield f"most often: {_MOST_OFTEN[action]}"


def why_without_gpus(action: str) -> Iterator[str]:
    """Yield the reasons why *action* may have failed on an instance that requests no GPUs."""
    if reason := {**_IN_CONTAINERS, "live-migration": None}.get(action):
        yield f"in a container, on a host with GPUs: {reason}"
    if action == "resize":
        yield (
            f"most often, to a flavor with GPUs: {_MOST_OFTEN[action]}, or the instance is a VM "
            "that was made with another machine type than q35, which it keeps"
        )
