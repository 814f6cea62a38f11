# SPDX-License-Identifier: Apache-2.0
"""What users and operators do, as a table: a new operation is a line.

``before``: the statuses in which Nova takes it; ``after``: the one that follows where it changes.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

from nova.virt.libvirt import utils as libvirt_utils

from tests.functional import base
from tests.matrix import axes
from tests.matrix.stage import Stage

ACTIVE, SHUTOFF, PAUSED, SUSPENDED = "ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"
RESCUE, RESIZED, SHELVED = "RESCUE", "VERIFY_RESIZE", "SHELVED"
OFFLOADED, DELETED, SOFT_DELETED = "SHELVED_OFFLOADED", "DELETED", "SOFT_DELETED"
ERROR = "ERROR"
_ANY = (ACTIVE, SHUTOFF, PAUSED, SUSPENDED, RESCUE, RESIZED, SHELVED, OFFLOADED, ERROR)


@dataclasses.dataclass(frozen=True)
class Operation:
    do: Callable[[Stage], None]
    before: tuple[str, ...] = _ANY
    after: str | None = None
    needs: str | None = None  # the condition that it needs
    kinds: tuple[str, ...] = axes.ALL_KINDS


def _action(name: str, body: object = None, *, admin: bool = False) -> Callable[[Stage], None]:
    return lambda stage: stage.act({name: body}, admin=admin)


def _boot(stage: Stage) -> None:
    stage.boot_another()


def _boot_two(stage: Stage) -> None:
    stage.boot_another(2)


def _fill(stage: Stage) -> None:
    """Another project takes all GPUs that are free."""
    stage.fill()


def _rebuild(stage: Stage, image: str = "") -> None:
    stage.act({"rebuild": {"imageRef": image or stage.image}})


def _rebuild_bad(stage: Stage) -> None:
    _rebuild(stage, stage.cloud.image(**stage.cloud.BAD))


def _rebuild_plain_image(stage: Stage) -> None:
    """With an image that says nothing of its machine or firmware"""
    _rebuild(stage, base.IMAGE)


def _rescue(stage: Stage) -> None:
    folder = libvirt_utils.get_instance_path(stage.cloud.instance(stage.server))
    pathlib.Path(folder).mkdir(exist_ok=True)
    stage.act({"rescue": {"rescue_image_ref": base.IMAGE}})


def _resize(count: int, flavor: str | None = None) -> Callable[[Stage], None]:
    def resize(stage: Stage) -> None:
        stage.act({"resize": {"flavorRef": stage.flavor(count, flavor)}})

    return resize


def _snapshot(stage: Stage) -> None:
    stage.act({"createImage": {"name": "snapshot"}})


def _backup(stage: Stage) -> None:
    # Nova's stand-in for Glance lists images of all kinds, so that fewer would end them all.
    stage.act({"createBackup": {"name": "backup", "backup_type": "daily", "rotation": 1000}})


def _evacuate(stage: Stage) -> None:
    """Its host dies, and comes back at the end."""
    if host := stage.host():
        stage.die(host)
        stage.act({"evacuate": {}}, admin=True)


def _die(stage: Stage) -> None:
    if host := stage.host():
        stage.die(host)


def _return(stage: Stage) -> None:
    stage.return_hosts()


def _restart(stage: Stage) -> None:
    for name in sorted(stage.cloud.hosts.keys() - stage.cloud.down):
        stage.restart(name)


def _lose_power(stage: Stage) -> None:
    if (host := stage.host()) and host not in stage.cloud.down:
        stage.lose_power(host)


def _delete(stage: Stage) -> None:
    stage.ask(lambda: stage.api.delete_server(stage.server["id"]))


def _describe(stage: Stage) -> None:
    body = {"metadata": {"gpu:on_stop": "release", "words": "\x1b[2K"}}
    stage.ask(lambda: stage.api.api_post(f"/servers/{stage.server['id']}/metadata", body))


def _attach_volume(stage: Stage) -> None:
    volume = stage.cloud.cinder.SWAP_OLD_VOL
    body = {"volumeAttachment": {"volumeId": volume}}
    stage.ask(lambda: stage.api.post_server_volume(stage.server["id"], body))


def _attach_interface(stage: Stage) -> None:
    body = {"interfaceAttachment": {"port_id": stage.cloud.neutron.port_2["id"]}}
    stage.ask(lambda: stage.api.attach_interface(stage.server["id"], body))


_RUNS = (ACTIVE, ERROR)

OPERATIONS: Mapping[str, Operation] = {
    "boot": Operation(_boot),
    "boot-two": Operation(_boot_two),
    "fill": Operation(_fill),
    "reboot": Operation(_action("reboot", {"type": "SOFT"}), (ACTIVE,)),
    "hard-reboot": Operation(
        _action("reboot", {"type": "HARD"}),
        (ACTIVE, SHUTOFF, PAUSED, SUSPENDED, ERROR),
        ACTIVE,
    ),
    "stop": Operation(_action("os-stop"), _RUNS, SHUTOFF),
    "start": Operation(_action("os-start"), (SHUTOFF,), ACTIVE),
    "pause": Operation(_action("pause"), (ACTIVE,), PAUSED),
    "unpause": Operation(_action("unpause"), (PAUSED,), ACTIVE),
    "suspend": Operation(_action("suspend"), (ACTIVE,)),
    "rescue": Operation(_rescue, (ACTIVE, SHUTOFF, ERROR), RESCUE, kinds=axes.ON_KVM),
    "unrescue": Operation(_action("unrescue"), (RESCUE,), ACTIVE),
    "rebuild": Operation(_rebuild, (ACTIVE, SHUTOFF, ERROR), ACTIVE),
    "rebuild-bad": Operation(_rebuild_bad, (ACTIVE, SHUTOFF, ERROR), ERROR),
    "rebuild-other": Operation(_rebuild_plain_image, (ACTIVE, SHUTOFF, ERROR), ACTIVE),
    "resize-up": Operation(_resize(2), (ACTIVE, SHUTOFF), RESIZED),
    "resize-same": Operation(_resize(1), (ACTIVE, SHUTOFF), RESIZED),
    "resize-plain": Operation(_resize(0, axes.PLAIN), (ACTIVE, SHUTOFF), RESIZED),
    "migrate": Operation(_action("migrate", admin=True), (ACTIVE, SHUTOFF), RESIZED),
    "confirm": Operation(_action("confirmResize"), (RESIZED,), ACTIVE),
    "revert": Operation(_action("revertResize"), (RESIZED,), ACTIVE),
    "live-migrate": Operation(
        _action("os-migrateLive", {"host": None, "block_migration": "auto"}, admin=True),
        (ACTIVE, PAUSED),
        kinds=axes.ON_KVM,
    ),
    "evacuate": Operation(_evacuate, (ACTIVE, SHUTOFF, ERROR), SHUTOFF),
    "die": Operation(_die),
    "return": Operation(_return),
    "shelve": Operation(_action("shelve"), (ACTIVE, SHUTOFF, PAUSED, SUSPENDED), SHELVED),
    "offload": Operation(_action("shelveOffload", admin=True), (SHELVED,), OFFLOADED),
    "unshelve": Operation(_action("unshelve"), (SHELVED, OFFLOADED), ACTIVE),
    "snapshot": Operation(_snapshot, (ACTIVE, SHUTOFF, PAUSED, SUSPENDED)),
    "backup": Operation(_backup, (ACTIVE, SHUTOFF, PAUSED, SUSPENDED)),
    "delete": Operation(_delete, _ANY, DELETED),
    "soft-delete": Operation(_delete, _ANY, SOFT_DELETED, needs="soft-delete"),
    "force-delete": Operation(_action("forceDelete"), (*_ANY, SOFT_DELETED), DELETED),
    "restore": Operation(_action("restore"), (SOFT_DELETED,), ACTIVE),
    "reclaim": Operation(lambda stage: stage.reclaim(), (SOFT_DELETED,), DELETED),
    "lock": Operation(_action("lock", {}, admin=True), _ANY),
    "metadata": Operation(_describe, (ACTIVE, SHUTOFF, PAUSED, SUSPENDED)),
    "attach-volume": Operation(_attach_volume, (ACTIVE, SHUTOFF, PAUSED, RESIZED, SHELVED)),
    "attach-interface": Operation(_attach_interface, (ACTIVE, SHUTOFF, PAUSED)),
    "restart": Operation(_restart, (*_ANY, SOFT_DELETED)),
    "power-loss": Operation(_lose_power, (*_ANY, SOFT_DELETED)),
    "period": Operation(lambda stage: stage.cloud_period(), (*_ANY, SOFT_DELETED)),
}
# Admins only, by Nova's policies: a member's request must change nothing.
ADMINS = ("migrate", "live-migrate", "evacuate", "offload", "lock")


@dataclasses.dataclass(frozen=True)
class State:
    """How an instance comes into a state after its boot, and the status it has then."""

    steps: tuple[str, ...]
    status: str


STATES: Mapping[str, State] = {
    "active": State((), ACTIVE),
    "stopped": State(("stop",), SHUTOFF),
    "stopped-full": State(("stop", "fill"), SHUTOFF),
    "restarted": State(("stop", "start"), ACTIVE),
    "paused": State(("pause",), PAUSED),
    "rescued": State(("rescue",), RESCUE),
    "shelved": State(("shelve",), SHELVED),
    "offloaded": State(("shelve", "offload"), OFFLOADED),
    "unshelved": State(("shelve", "offload", "unshelve"), ACTIVE),
    "resized": State(("resize-same",), RESIZED),
    "resized-up": State(("resize-up",), RESIZED),
    "resized-plain": State(("resize-plain",), RESIZED),
    "resized-stopped": State(("stop", "resize-same"), RESIZED),
    "migrated": State(("migrate",), RESIZED),
    "confirmed": State(("migrate", "confirm"), ACTIVE),
    "confirmed-up": State(("resize-up", "confirm"), ACTIVE),
    "reverted": State(("resize-same", "revert"), ACTIVE),
    "failed": State(("rebuild-bad",), ERROR),
    "evacuated": State(("evacuate", "start"), ACTIVE),
    "soft-deleted": State(("soft-delete",), SOFT_DELETED),
    "soft-deleted-stopped": State(("stop", "soft-delete"), SOFT_DELETED),
    "dead": State(("die",), ACTIVE),
}
