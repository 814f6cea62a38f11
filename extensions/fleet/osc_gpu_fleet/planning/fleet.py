# SPDX-License-Identifier: Apache-2.0
"""A fleet as plain values: hosts with GPUs, their instances, and the cost of moving each."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from nova_gpu.core.card_sets import Module
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling.capacity import Group, Host
from nova_gpu_fleet.core import names
from nova_gpu_fleet.core.extra_specs import Consent


class Way(enum.StrEnum):
    """The ways to move an instance, the least disruptive first."""

    STOPPED = "stopped"
    LIVE = "live"
    COLD = "cold"

    @property
    def cost(self) -> int:
        """The cost of a move of this way, from 1; it ranks plans with equal numbers of moves."""
        return list(Way).index(self) + 1

    @property
    def in_words(self) -> str:
        return _IN_WORDS[self]


_IN_WORDS = {
    Way.STOPPED: "none: it is stopped, and moves cold",
    Way.LIVE: "it moves live, and goes on",
    Way.COLD: "it is shut down, moved and started",
}


WAITS = "its move or resize waits for openstack server migration confirm, or revert"


def permitted_way(
    status: str, consent: Consent, *, live: bool, keeps_disk: bool
) -> tuple[Way | None, str]:
    """Return how an instance may be moved and an empty text, or ``None`` and why it stays.

    :param live: whether all of its GPUs can migrate while it runs
    :param keeps_disk: whether a cold migration moves its disk; Nova does not copy a container's
    """
    if consent is Consent.NONE:
        return None, f"its flavor says {names.MOVE} none"
    if status == "SHUTOFF":
        if not keeps_disk and consent is not Consent.COLD:
            return None, (
                f"it is a container, whose disk does not move, and its flavor does not say "
                f"{names.MOVE} cold"
            )
        return Way.STOPPED, ""
    if status == "VERIFY_RESIZE":
        return None, WAITS
    if status != "ACTIVE":
        return None, f"its status is {status}"
    if live:
        return Way.LIVE, ""
    if consent is Consent.COLD:
        return Way.COLD, ""
    return None, f"it runs, and its flavor does not say {names.MOVE} cold"


# The number of GPUs, by the index of their group
CountByGroup = tuple[tuple[int, int], ...]
# The modules of these GPUs, by the index of each group whose GPUs NVSwitches join
ModulesByGroup = tuple[tuple[int, tuple[Module, ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Spot:
    """Where an instance is or could be: a host, and the GPUs of its groups.

    ``held`` is the number of GPUs and ``sets`` their modules, both by the index of the group;
    groups without a board, or with unknown modules, are not in ``sets``.
    """

    host: int
    held: CountByGroup
    sets: ModulesByGroup = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """The resources that an instance takes of a host.

    ``groups`` are the request groups for GPUs in Placement's query, ``amounts`` the resources other
    than GPUs, by class. ``isolate``: different providers must serve the groups.
    """

    groups: tuple[GroupRequest, ...]
    amounts: tuple[tuple[str, int], ...] = ()
    isolate: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance, the resources that it takes of its host, and how it can be moved.

    ``need`` is what a host must have free for it; ``held`` and ``sets`` are the GPUs that it has,
    as in :class:`Spot`. ``way``: ``None`` if it may not be moved; ``stays`` is then the reason.
    ``is_fixed``: whether it is not preemptible either, so that no plan needs its ``sets``.
    """

    uuid: str
    name: str
    host: str
    need: Need
    held: CountByGroup
    way: Way | None
    stays: str = ""
    sets: ModulesByGroup = ()
    is_fixed: bool = False

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.held)


def with_last_set(there: Sequence[Instance], groups: Sequence[Group]) -> list[Instance]:
    """Return the instances of one host, with the modules of one whose modules were unknown.

    If the modules of only one instance on a board are unknown, for example of a stopped one, they
    are those that no other instance can have.
    """
    members = list(there)
    for number, group in enumerate(groups):
        holders = [n for n, member in enumerate(members) if number in dict(member.held)]
        unknown = [n for n in holders if number not in dict(members[n].sets)]
        if group.board is None or len(unknown) != 1:
            continue
        (last,) = unknown
        others = (dict(members[n].sets)[number] for n in holders if n != last)
        left = group.board.taken.difference(*others)
        # If more are left, the board has cards that no instance can get, or instances of another
        # group.
        if len(left) == dict(members[last].held)[number]:
            sets = tuple(sorted((*members[last].sets, (number, tuple(sorted(left))))))
            members[last] = dataclasses.replace(members[last], sets=sets)
    return members


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """Hosts with GPUs, and their instances.

    ``hosts`` have distinct names; their free resources may be below 0. ``shared`` has, by a host's
    name, sets of groups whose vGPUs are made from the same cards: what an instance gets of one
    group, the others lose. Only the host knows how much, so all that is free there counts as lost.
    """

    hosts: tuple[Host, ...]
    instances: tuple[Instance, ...]
    shared: Mapping[str, tuple[frozenset[int], ...]] = dataclasses.field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether it is known exactly which GPUs are free after any moves.

        It is not if vGPU types share cards, or if the modules of an instance on a board that may
        leave are unknown.
        """
        hosts = {host.name: host for host in self.hosts}
        return not self.shared and all(
            hosts[instance.host].groups[group].board is None or group in dict(instance.sets)
            for instance in self.instances
            if not instance.is_fixed
            for group, _ in instance.held
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """One move of an instance. When its turn comes, the destination has room for it.

    ``spot`` is the GPUs that it gets there, ``reason`` what the move frees.
    """

    instance: Instance
    source: str
    destination: str
    spot: Spot
    reason: str

    @property
    def way(self) -> Way:
        assert self.instance.way is not None
        return self.instance.way


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Moves, to be made one after the other.

    :param reached: whether they reach the goal; otherwise there are no moves
    :param proven: whether it is certain that no plan has fewer moves or, if the goal is not
        reached, that no plan reaches it
    """

    moves: tuple[Move, ...]
    reached: bool
    proven: bool
