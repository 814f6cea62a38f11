# SPDX-License-Identifier: Apache-2.0
"""Groups of a host as Placement is told of them and as Nova's claims draw from them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, Generic, TypeVar

from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.conf import CONF
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey
from nova_gpu.virt.inventory import provider_tree
from nova_gpu.virt.usage.ledger import Ledger

Group = TypeVar("Group")


class Published(abc.ABC, Generic[Group]):
    """What whole cards and vGPUs have in common as a :class:`nova_gpu.virt.inventory.pool.Supply`.

    It looks at nothing: what was found, and who has what, is noted by others, so that a claim never
    waits for it. What of a group is free differs: parts of one card take from one another.
    """

    in_parts: bool

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.provider_uuids: dict[GroupKey, str] = {}

    @abc.abstractmethod
    def groups(self) -> Mapping[GroupKey, Group]:
        """The groups, by what is known now"""

    def group_of(self, provider_uuid: str) -> Group | None:
        """The group that a provider stands for, ``None`` where it is not known as one of ours."""
        keys = {uuid: key for key, uuid in self.provider_uuids.items()}
        key = keys.get(provider_uuid)
        return None if key is None else self.groups().get(key)

    # Publishing

    def publish(
        self, tree: nova_provider_tree.ProviderTree, nodename: str, hypervisor_type: str
    ) -> None:
        """Writes the groups into the tree, from what is known. Runs inside every claim."""
        present = provider_tree.groups_in(tree, nodename, in_parts=self.in_parts)
        if not self.groups() and not present:
            return
        wanted, offer = self._offered(present, hypervisor_type)
        self.provider_uuids = provider_tree.ensure(tree, nodename, wanted, in_parts=self.in_parts)
        for key, uuid in self.provider_uuids.items():
            if (group := self.groups().get(key)) is not None:
                provider_tree.publish(tree, uuid, key, offer(group), self)
            else:
                provider_tree.withdraw(tree, uuid, key, self)

    @abc.abstractmethod
    def _offered(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[Group], provider_tree.Offer]]:
        """The groups that are to be in the tree, and what each has to offer once they are.

        :param present: those that are there already
        """

    def _recorded(self, uuids: Mapping[GroupKey, str]) -> set[tuple[GroupKey, Device]]:
        """What the database counts for instances of these groups"""
        return self._ledger.now.recorded({uuid: key for key, uuid in uuids.items()})

    # The pool

    @abc.abstractmethod
    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        """As :class:`nova_gpu.virt.inventory.pool.Supply` has it"""

    @abc.abstractmethod
    def choose(
        self, provider_uuid: str, free: Collection[Device], count: int
    ) -> tuple[Device, ...]:
        """As :class:`nova_gpu.virt.inventory.pool.Supply` has it"""

    def hand_out(
        self, addresses: Collection[Device], back: Collection[Device], assigned: Set[Any]
    ) -> None:
        timeout_s = CONF.gpu.handed_out_timeout
        self._ledger.claim(addresses, back, assigned, timeout_s)
