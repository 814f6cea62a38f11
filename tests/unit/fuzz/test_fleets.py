# SPDX-License-Identifier: Apache-2.0
"""Any fleet and any request: what is refused, chosen and put first, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import fixtures
from hypothesis import strategies as st
from nova.scheduler import host_manager
from nova.scheduler import weights as nova_weights

from nova_gpu.core.flavor import gpu_extra_specs, request
from nova_gpu.core.flavor.placement_policy import Distribution, Topology
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress, Product
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology import choose, topology
from nova_gpu.scheduler.filters import unfit
from nova_gpu.scheduler.weights import GPUWeigher
from nova_gpu.virt.inventory import card_groups
from tests.fixtures import brute_force, cards
from tests.fixtures.bases import fuzz as base
from tests.fixtures.cloud_gpus import request_spec

PRODUCTS = (
    Product("10de", "1091", "Tesla M2090", "fermi", 5301),
    Product("10de", "1023", "Tesla K40m", "kepler", None),
    Product("10de", "ffff", None, None, 81920),
)


@st.composite
def layouts(draw: st.DrawFn) -> list[GPU]:
    """Up to eight cards as machines have them, each level in runs of one length"""
    joined = draw(st.sampled_from([1, 2, 4, 8]))
    per_node = draw(st.sampled_from([n for n in (2, 4, 8) if n >= joined or joined == 8]))
    per_root = draw(st.sampled_from([n for n in (1, 2, 4) if n <= per_node]))
    per_switch = draw(st.sampled_from([0, *(n for n in (2, 4) if n <= per_root)]))
    known, bus = draw(st.booleans()), 0x10 * draw(st.integers(0, 8))
    product = draw(st.sampled_from(PRODUCTS))
    gpus = []
    for number in range(draw(st.integers(1, 8))):
        first = number - number % joined
        gpus.append(
            cards.placed(
                f"0000:{bus + number:02x}:00.0",
                number // per_node if known else None,
                [f"0000:{bus + n:02x}:00.0" for n in range(first, first + joined) if n != number],
                product=product,
                pci_root=f"pci0000:{number // per_root:02x}",
                pcie_switch=PciAddress(1, number // per_switch, 0, 0) if per_switch else None,
            )
        )
    return gpus


@st.composite
def free_of(draw: st.DrawFn) -> list[GPU]:
    """Any of a layout"""
    gpus = draw(layouts())
    return [gpu for gpu in gpus if draw(st.booleans())]


REQUESTS = st.fixed_dictionaries(
    {"gpus": st.integers(1, 9).map(str)},
    optional={
        "gpu_arch": st.sampled_from(["fermi", "s!= fermi", "<or> fermi <or> ada"]),
        "gpu:model": st.sampled_from(["Tesla K40m", "<in> tesla", "s!= H200"]),
        "gpu:memory_mib": st.sampled_from([">= 5301", "== 5301", "<= 9000", "99999"]),
        "gpu:topology": st.sampled_from(list(Topology)).map(str),
    },
)


class FleetTest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        # It writes down every weight.
        self.useFixture(fixtures.FakeLogger("nova.weights", level=100))

    @base.fuzzed(host=st.lists(layouts(), max_size=2), flavor=REQUESTS)
    def test_what_is_refused_could_never_be_served(
        self, host: list[list[GPU]], flavor: Mapping[str, str]
    ) -> None:
        gpu_request = request.of(flavor).whole
        assert gpu_request
        by_address = {gpu.address: gpu for gpus in host for gpu in gpus}
        offers = card_groups.offered(by_address.values(), {}, DeliveryMode.LXC, {})
        report = stats.loads(card_groups.report(offers, "LXC", ()))
        groups = [list(group.gpus.values()) for group in offers.values()]
        able = any(_can_serve(gpus, gpu_request) for gpus in groups)
        self.assertEqual(able, unfit(gpu_request, report.host) is None)

    @base.fuzzed(free=free_of())
    def test_the_pool_gives_the_best_set(self, free: list[GPU]) -> None:
        places = topology.places(free)
        costs = choose.costs(topology.cells(free))
        for count in range(len(free) + 1):
            chosen = choose.choose(places.keys(), count, places)
            best = brute_force.best(count, places)
            self.assertEqual(best, (brute_force.cost(chosen, places), chosen))
            self.assertEqual(best[0], costs[count])

    @base.fuzzed(
        fleet=st.lists(free_of(), min_size=2, max_size=5),
        count=st.integers(1, 8),
        distribution=st.sampled_from(list(Distribution)),
    )
    def test_the_weigher_has_the_order_of_brute_force(
        self, fleet: list[list[GPU]], count: int, distribution: Distribution
    ) -> None:
        hosts = [_host_state(number, gpus) for number, gpus in enumerate(fleet)]
        spec = request_spec({"gpus": str(count), "gpu:distribution": distribution.value})
        handler = nova_weights.HostWeightHandler()
        weighed = handler.get_weighed_objects([GPUWeigher()], hosts, spec)
        ranks = [brute_force.rank(fleet[int(w.obj.host)], count, distribution) for w in weighed]
        self.assertEqual(sorted(ranks), ranks)
        for one, other in itertools.pairwise(range(len(ranks))):
            same = weighed[one].weight == weighed[other].weight
            self.assertEqual(ranks[one] == ranks[other], same)


def _can_serve(gpus: Sequence[GPU], gpu_request: GPURequest) -> bool:
    """Whether any set of one group's cards is what is asked for"""
    product = gpus[0].product
    facts = {
        gpu_extra_specs.GPU_ARCH: product.architecture,
        gpu_extra_specs.MODEL: product.name,
        gpu_extra_specs.MEMORY_MIB: product.memory_mib,
    }
    if not all(demand.condition.matches(facts[demand.word]) for demand in gpu_request.demands):
        return False
    circles = topology.circles(gpus)
    for subset in itertools.combinations(gpus, gpu_request.count):
        nodes = {gpu.numa_node for gpu in subset}
        together = {
            Topology.ANY: True,
            Topology.NUMA: len(subset) == 1 or (len(nodes) == 1 and None not in nodes),
            Topology.NVLINK: len({circles[gpu.address] for gpu in subset}) == 1,
        }
        if together[gpu_request.arrangement.topology]:
            return True
    return False


def _host_state(number: int, free: Sequence[GPU]) -> host_manager.HostState:
    group = stats.GroupStats("10de:1091", "fermi", "lxc", 8)
    report = stats.Report(stats.HostStats("LXC", (group,)), (topology.cells(free),))
    state = host_manager.HostState(str(number), str(number), None)
    state.uuid = f"uuid-{number}"
    state.stats = {"nova_gpu": stats.dumps(report)}
    return state
