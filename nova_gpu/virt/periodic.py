# SPDX-License-Identifier: Apache-2.0
"""The periodic look at a host's cards, whose failures do not reach instances without GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.virt import reporter
from nova_gpu.virt.health import monitor
from nova_gpu.virt.inventory import discovery, published_cards
from nova_gpu.virt.lifecycle import proofs, vgpus

LOG = logging.getLogger(__name__)

UNREAD = "Nova's database has not said yet which cards instances have parts of"
_LINKED = (
    "direct links join it with {peer}, which is given in parts, and a guest would reach that over "
    "them; see [gpu]split_link_groups"
)
UNSEEN = "the last look at this host's GPUs failed; see nova-compute's log"


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Log any error of the block, and go on: instances without GPUs go through it as well.

    :param what: what failed and what follows from it, for the log
    """
    try:
        yield
    except Exception:  # a period goes on with what else there is, and Nova's own part of it
        LOG.exception("%s. This is a bug, please report it", what)


class Step:
    """The step of the periodic task that looks at the cards and says what is new of them."""

    def __init__(
        self,
        host: discovery.Discovery,
        watch: monitor.Watch,
        cards_offer: published_cards.PublishedCards,
        parts: vgpus.VGPUs,
        reports: reporter.Reporter,
        known: proofs.Proofs,
        away: Callable[[], Mapping[PciAddress, str]],
    ) -> None:
        """Wire the step.

        :param known: which devices are clean
        :param away: says why cards are not offered whose state is not on disk
        """
        self._proofs = known
        self._away = away
        self._discovery = host
        self._watch = watch
        self._published = cards_offer
        self._vgpus = parts
        self._reporter = reports

    def look(self) -> Callable[[], None]:
        """Look at the cards, and returns what says how they are, once it is known whose."""
        self._published.begin_look()
        try:
            gpus = self._discovery.find()
        except exception.DiscoveryFailed as error:
            LOG.error("%s. The former state of the GPUs stays in force.", error)
            return lambda: None
        given_whole = self._published.given_whole()
        divided = self._vgpus.cards.read(gpus, given_whole, self._vgpus.published.held_slots())
        # Outside of what every claim waits for: it may be slow.
        whole = [gpu for gpu in gpus if gpu.address not in divided]
        obstacles = {**self._discovery.obstacles(whole), **divided}
        for gpu in whole:
            peers = self._discovery.links.joined().get(gpu.address, frozenset())
            if gpu.address not in given_whole and (parted := peers & divided.keys()):
                obstacles[gpu.address] = _LINKED.format(peer=min(parted))
        ailments = self._watch.look(gpus)
        quarantined = {**self._away(), **self._discovery.quarantined(gpus)}
        schedulable = [gpu for gpu in whole if gpu.address in given_whole]
        changed = self._discovery.divided_since(schedulable)
        reasons = ((gpu.address, self._discovery.ways.sets.why_not(gpu)) for gpu in schedulable)
        withheld_cards = {address: reason for address, reason in reasons if reason}
        obstacles = {
            a: reason for a, reason in obstacles.items() if withheld_cards.get(a) != reason
        }
        kept_back = {**changed, **withheld_cards, **ailments.kept_back, **quarantined}
        ailments = dataclasses.replace(ailments, kept_back=kept_back)
        self._vgpus.cards.judge(ailments)
        # Before any of them is offered
        shared = self._vgpus.shared_with_containers()
        self._proofs.judge((gpu for gpu in whole if gpu.address not in obstacles), shared)
        self._published.take_in(gpus, self._discovery.delivery.mode, obstacles, ailments)
        others = [gpu for gpu in gpus if not self._vgpus.cards.look.has(gpu.address)]
        return lambda: self._reporter.report(
            others, obstacles, self._published.groups(), self._published.owners(), quarantined
        )
