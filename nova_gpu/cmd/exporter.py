# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu exporter``: serves metrics of this host's cards for Prometheus."""

from __future__ import annotations

import pathlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import prometheus_client
from oslo_log import log as logging
from prometheus_client import core
from prometheus_client.registry import Collector

from nova_gpu.cmd import arguments, cards, holders, this_host
from nova_gpu.cmd.cards import Card
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Source
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import acs
from nova_gpu.virt import counters
from nova_gpu.virt.health import monitor
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.usage import accounts

LOG = logging.getLogger(__name__)

_LISTEN = re.compile(r"\[?([0-9A-Za-z.:-]+?)\]?:([0-9]{1,5})")
# Prometheus gives up after 10 s, by default.
_LIBVIRT_S = 4.0

# Requests within this time get one answer: each reading starts a process for NVML, and any user may
# send requests.
_FRESH_S = 1.0

# name: (its description, its labels). The library appends _total to a counter's name. The reference
# is generated from these, too.
GAUGES = {
    "nova_gpu_up": ("Whether this host's cards can be listed.", ()),
    "nova_gpu_libvirt_up": ("Whether libvirt tells which instance has which card.", ()),
    "nova_gpu_period_timestamp_seconds": (
        "When nova-compute last read the cards, libvirt and Nova's database without a failure, as "
        "Unix time. Absent before the first time.",
        (),
    ),
    "nova_gpu_free": (
        "How many cards were free for new instances then, whole or in parts.",
        (),
    ),
    "nova_gpu_info": (
        "The facts about the card, as labels. Always 1.",
        ("address", "product_id", "name", "architecture", "driver", "numa_node"),
    ),
    "nova_gpu_offered": (
        "Whether instances can get the card, now or once it is free.",
        ("address",),
    ),
    "nova_gpu_divided": ("Whether the card is for several instances, as vGPUs.", ("address",)),
    "nova_gpu_healthy": ("Whether the card has no known fault.", ("address",)),
    "nova_gpu_quarantined": ("Whether the card is in quarantine.", ("address",)),
    "nova_gpu_assigned": (
        "How many guests have the card in their domain, running or not.",
        ("address",),
    ),
    "nova_gpu_shared": (
        "How many running guests can open the card, or a part of it, although another one can too.",
        ("address",),
    ),
    "nova_gpu_reached": (
        "How many running guests can open the card, or a part of it, although it is not theirs.",
        ("address",),
    ),
    "nova_gpu_remote": (
        "How many running guests have the card, and no NUMA cell on its NUMA node.",
        ("address",),
    ),
    "nova_gpu_instance": (
        "A guest that has the card in its domain, as a label with its uuid. Always 1.",
        ("address", "instance"),
    ),
    "nova_gpu_unseparated": (
        "KVM: whether a PCI Express port does not separate the card from other cards (ACS is "
        "missing or off). Absent while nova-compute has not noted it and only root can read it.",
        ("address",),
    ),
    "nova_gpu_unsafe_interrupts": (
        "KVM: whether vfio gives cards to guests without interrupt remapping.",
        (),
    ),
    "nova_gpu_utilization_ratio": ("How busy the card is, 0 to 1, by NVML.", ("address",)),
    "nova_gpu_memory_used_bytes": (
        "Memory of the card in use, by NVML, without what the driver reserves for itself.",
        ("address",),
    ),
    "nova_gpu_memory_total_bytes": ("Memory of the card, by NVML.", ("address",)),
}
# Fields of an Account, and the labels
_USAGE = (
    *("instance_uuid", "project_id", "user_id", "usage_id"),
    *("product_id", "product", "vgpu_type"),
)
COUNTERS = {
    "nova_gpu_claims": ("Cards that instances got at starts on this host.", ()),
    "nova_gpu_vgpu_claims": ("vGPUs that instances got at starts on this host.", ()),
    "nova_gpu_usage_seconds": (
        "The seconds in which an instance had GPUs of a product, or vGPUs of a type, times their "
        "number, as in gpu.exists. Only with [DEFAULT]instance_usage_audit.",
        _USAGE,
    ),
    "nova_gpu_start_failures": (
        "Starts of guests that failed because of GPUs, by the error's class. The cause is host, "
        "request (an image, a flavor or a quota, or no fitting GPU free on the host) or unknown.",
        ("reason", "cause"),
    ),
}
SUMMARIES = {
    "nova_gpu_cleaning_seconds": (
        "Seconds that cleanings of cards took: after a guest, and at a start of nova-compute where "
        "nothing proves a card clean. The outcome is clean or failed.",
        ("outcome",),
    )
}

_Samples = Iterable[tuple[tuple[str, ...], float]]


def run(command: Any, _: list[str]) -> int:
    return main(this_host.discover(), command.listen, once=command.once)


def main(
    discovery: Discovery, listen: str, *, once: bool, stop: threading.Event | None = None
) -> int:
    """Serve the metrics until *stop* is set or the process ends; with *once* print them and return.

    :returns: the exit status: 0, or 2 if *listen* is not ADDRESS:PORT
    :raises OSError: if the address cannot be listened at
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(Metrics(discovery, pathlib.Path(NOVAS.state_path)))
    if once:
        print(prometheus_client.generate_latest(registry).decode(), end="")
        return 0
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[2]) > 65535:
        print(f"nova-gpu: --listen {listen}: it must look like {arguments.LISTEN}", file=sys.stderr)
        return 2
    try:
        server, thread = prometheus_client.start_http_server(int(match[2]), match[1], registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"--listen {listen}: {reason}; free that address, or give another one"
        ) from error
    LOG.info("Serving metrics of this host's GPUs at http://%s/metrics", listen)
    try:
        (stop or threading.Event()).wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return 0


class Metrics(Collector):
    """The collector of the metrics.

    It reads the host when a client requests the metrics, for one request at a time; requests within
    a second get the same answer. On a KVM host NVML is not queried: while a process has a card's
    device node open, the card cannot be bound to vfio-pci.
    """

    def __init__(self, discovery: Discovery, state_path: pathlib.Path) -> None:
        self._discovery = discovery
        self._state_path = state_path
        self._watch = monitor.Watch(discovery.roots, asks_nvml=discovery.delivery.shares_driver)
        self._looking = threading.Lock()
        self._seen: tuple[float, list[core.Metric]] | None = None

    def describe(self) -> list[Any]:
        """Return no metrics; otherwise the registry would read the host to learn their names."""
        return []

    def collect(self) -> Iterator[core.Metric]:
        with self._looking:
            if self._seen is None or time.monotonic() - self._seen[0] >= _FRESH_S:
                metrics = list(self._look())
                self._seen = time.monotonic(), metrics
            return iter(self._seen[1])

    def _look(self) -> Iterator[core.Metric]:
        began = time.monotonic()
        try:
            listed_cards = cards.read(self._discovery, self._watch)
        except exception.DiscoveryFailed as error:
            LOG.error("%s", error)
            yield _gauge("nova_gpu_up", [((), 0)])
        else:
            yield _gauge("nova_gpu_up", [((), 1)])
            yield from self._of_cards(listed_cards)
        yield from self._counted()
        LOG.debug("Read the GPUs in %.3f s", time.monotonic() - began)

    def _of_cards(self, listed_cards: list[Card]) -> Iterator[core.Metric]:
        yield _gauge("nova_gpu_info", [(_info(card.gpu), 1) for card in listed_cards])
        yield _of_each("nova_gpu_divided", listed_cards, lambda card: card.parts is not None)
        yield _of_each(
            "nova_gpu_healthy",
            listed_cards,
            lambda card: not any(reason.is_fault for reason in card.unavailable),
        )
        yield _of_each(
            "nova_gpu_quarantined",
            listed_cards,
            lambda card: any(reason.source is Source.QUARANTINE for reason in card.unavailable),
        )
        whole = [card.gpu for card in listed_cards if card.parts is None]
        divided = [card.parts for card in listed_cards if card.parts is not None]
        named, unknown = holders.by_domain(self._discovery, whole, divided, _LIBVIRT_S)
        held = holders.by_card(named)
        yield _of_each(
            "nova_gpu_offered", listed_cards, lambda card: not card.why_not(held, unknown)
        )
        yield _gauge("nova_gpu_libvirt_up", [((), unknown is None)])
        if unknown is None:
            yield from _assigned(listed_cards, held)
            shared = device.shared({u: item.opened for u, item in named.items()})
            yield _gauge("nova_gpu_shared", _guests(listed_cards, shared))
            reached = {uuid: item.reached for uuid, item in named.items()}
            yield _gauge("nova_gpu_reached", _guests(listed_cards, device.users(reached)))
            far = holders.remote((card.gpu for card in listed_cards), named)
            addresses = [card.gpu.address for card in listed_cards]
            counts = [((str(address),), len(far.get(address, ()))) for address in addresses]
            yield _gauge("nova_gpu_remote", counts)
        if not self._discovery.delivery.shares_driver:
            yield from self._separated(card.gpu.address for card in listed_cards)
        yield from self._used(listed_cards)

    def _separated(self, addresses: Iterable[PciAddress]) -> Iterator[core.Metric]:
        judge = self._discovery.joined_cards.unseparated
        known = ((address, judge(address)) for address in addresses)
        samples = [((str(address),), value) for address, value in known if value is not None]
        yield _gauge("nova_gpu_unseparated", samples)
        unsafe = acs.unsafe_interrupts(self._discovery.roots) is not None
        yield _gauge("nova_gpu_unsafe_interrupts", [((), unsafe)])

    def _used(self, listed_cards: list[Card]) -> Iterator[core.Metric]:
        if not CONF.gpu.nvml or not self._discovery.delivery.shares_driver:
            return
        driven = [item.gpu.address for item in listed_cards if item.gpu.driver == nvml.DRIVER]
        usage_by_card = nvml.usage(driven, CONF.gpu.nvml_timeout)
        for name, field, scale in (
            ("nova_gpu_utilization_ratio", "utilization", 100),
            ("nova_gpu_memory_used_bytes", "memory_used", 1),
            ("nova_gpu_memory_total_bytes", "memory_total", 1),
        ):
            known = (
                (address, getattr(item, field)) for address, item in sorted(usage_by_card.items())
            )
            yield _gauge(name, [((str(a),), v / scale) for a, v in known if v is not None])

    def _counted(self) -> Iterator[core.Metric]:
        now = counters.read(self._state_path)
        if now.period_at:
            yield _gauge("nova_gpu_period_timestamp_seconds", [((), now.period_at)])
            yield _gauge("nova_gpu_free", [((), now.free)])
        yield _counter("nova_gpu_claims", [((), now.claims)])
        yield _counter("nova_gpu_vgpu_claims", [((), now.vgpu_claims)])
        usage = [
            (tuple(str(getattr(own, name) or "") for name in _USAGE), own.seconds)
            for own in accounts.read(self._state_path)
        ]
        yield _counter("nova_gpu_usage_seconds", usage)
        # From zero: Prometheus sees no increase in a series that begins with 1.
        causes = {kind.__name__: kind.cause for kind in _kinds(exception.GPUError)}
        unknown = exception.Cause.UNKNOWN  # of an error that another release has
        samples = [
            ((reason, causes.get(reason, unknown)), now.failures.get(reason, 0))
            for reason in sorted({*causes, *now.failures})
        ]
        yield _counter("nova_gpu_start_failures", samples)
        name = "nova_gpu_cleaning_seconds"
        text, labels = SUMMARIES[name]
        family = core.SummaryMetricFamily(name, text, labels=labels)
        for outcome in sorted({*counters.OUTCOMES, *now.cleanings}):
            count, seconds = now.cleanings.get(outcome, 0), now.cleaning_seconds.get(outcome, 0.0)
            family.add_metric([outcome], count_value=count, sum_value=seconds)
        yield family


def _kinds(error: type[exception.GPUError]) -> Iterator[type[exception.GPUError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _info(gpu: GPU) -> tuple[str, ...]:
    labels = (gpu.product.name, gpu.product.architecture, gpu.driver, gpu.numa_node)
    texts = ("" if value is None else str(value) for value in labels)
    return (str(gpu.address), gpu.product.key, *texts)


def _assigned(
    listed_cards: Iterable[Card], held: Mapping[PciAddress, tuple[str, ...]]
) -> Iterator[core.Metric]:
    addresses = [card.gpu.address for card in listed_cards]
    counts = [((str(address),), len(held.get(address, ()))) for address in addresses]
    yield _gauge("nova_gpu_assigned", counts)
    pairs = [((str(address), uuid), 1) for address in addresses for uuid in held.get(address, ())]
    yield _gauge("nova_gpu_instance", pairs)


def _guests(listed_cards: Iterable[Card], users: Mapping[Device, tuple[str, ...]]) -> _Samples:
    """Return how many of the guests in *users* use each card or a part of it, as samples."""

    def guests(card: Card) -> int:
        functions = {card.gpu.address, *(card.parts.parents if card.parts else ())}
        uuids = (u for item, u in users.items() if device.function(item) in functions)
        return len(frozenset[str]().union(*uuids))

    return [((str(card.gpu.address),), guests(card)) for card in listed_cards]


def _of_each(name: str, listed_cards: Iterable[Card], judge: Callable[[Card], bool]) -> core.Metric:
    return _gauge(name, [((str(card.gpu.address),), judge(card)) for card in listed_cards])


def _gauge(name: str, samples: _Samples) -> core.Metric:
    text, labels = GAUGES[name]
    return _filled(core.GaugeMetricFamily(name, text, labels=labels), samples)


def _counter(name: str, samples: _Samples) -> core.Metric:
    text, labels = COUNTERS[name]
    return _filled(core.CounterMetricFamily(name, text, labels=labels), samples)


def _filled(family: Any, samples: _Samples) -> core.Metric:
    for values, number in samples:
        family.add_metric(values, float(number))
    metric: core.Metric = family
    return metric
