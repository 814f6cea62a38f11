# SPDX-License-Identifier: Apache-2.0
"""The periodic look at a host's cards, whose failures do not reach instances without GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from oslo_log import log as logging

from nova_gpu.core import availability, exception
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.model import PciAddress
from nova_gpu.virt import reporter
from nova_gpu.virt.health import monitor
from nova_gpu.virt.inventory import discovery, published_cards
from nova_gpu.virt.lifecycle import proofs, vgpus

LOG = logging.getLogger(__name__)

UNREAD = Unavailable(
    "Nova's database has not said yet which cards instances have parts of", "", Source.SERVICE
)
UNSEEN = Unavailable(
    "the last look at this host's GPUs failed", "see nova-compute's log", Source.SERVICE
)
_LINKED = (
    "direct links join it with {peer}, which is given in parts, and a guest would reach that over "
    "them; see [gpu]split_link_groups"
)


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Log any error of the block, and go on: instances without GPUs go through it as well.

    :param what: what failed and what follows from it, for the log
    """
    try:
        yield
    except Exception:
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
        unsaved: Callable[[], Mapping[PciAddress, Reasons]],
    ) -> None:
        """Wire the step.

        :param known: which devices are clean
        :param unsaved: the cards that are not offered, and whose state is not on disk
        """
        self._proofs = known
        self._unsaved = unsaved
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
        linked = {}
        for gpu in whole:
            peers = self._discovery.links.joined().get(gpu.address, frozenset())
            if gpu.address not in given_whole and (parted := peers & divided.keys()):
                linked[gpu.address] = _LINKED.format(peer=min(parted))
        of_cards = availability.merge(
            self._discovery.quarantined(gpus), self._unsaved(), self._watch.look(gpus)
        )
        self._vgpus.cards.judge(of_cards)
        unavailable = availability.merge(
            of_cards,
            discovery.of_all(Source.DIVISION, linked),
            self._discovery.unavailable(whole, given_whole),
            divided,
            self._discovery.divided_since(gpu for gpu in whole if gpu.address in given_whole),
        )
        # Before any of them is offered
        shared = self._vgpus.shared_with_containers()
        refused = {a for a, own in unavailable.items() if availability.of_host(own)}
        self._proofs.judge((gpu for gpu in whole if gpu.address not in refused), shared)
        self._published.take_in(gpus, self._discovery.delivery.mode, unavailable)
        others = [gpu for gpu in gpus if not self._vgpus.cards.look.has(gpu.address)]
        return lambda: self._reporter.report(
            others, unavailable, self._published.groups(), self._published.owners()
        )
