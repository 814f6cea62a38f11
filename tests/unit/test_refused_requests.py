# SPDX-License-Identifier: Apache-2.0
"""The remedies of the page on refused requests: each is done, and the request passes or goes on.

A row has a text of the page, a request or flavor that gets it, and what the page advises. Each
entry of the two sections has a row, or a test elsewhere that does what it says.
"""

from __future__ import annotations

import re
import unittest
from collections.abc import Mapping
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from doc.ext.reference import messages
from nova_gpu.core.flavor import request, validation
from tests.fixtures.bases.request_filter import RequestFilterTestCase
from tests.fixtures.checkout import ROOT
from tests.fixtures.cloud_gpus import request_spec

FERMI, KEPLER = "CUSTOM_GPU_ARCH_FERMI", "CUSTOM_GPU_ARCH_KEPLER"
_DISABLED = "COMPUTE_STATUS_DISABLED"
_ONE = {"gpus": "1"}
_BOTH = {
    "resources1:PGPU": "1",
    f"trait1:{KEPLER}": "required",
    "resources2:PGPU": "1",
    f"trait2:{FERMI}": "required",
    "group_policy": "isolate",
}
# In a cloud of three hosts: "one" has 3 of 8 of Fermi free, "two" 2 of Kepler, "none" no GPU
REQUESTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (
        "no host has GPUs with gpu_arch hoper; there are: fermi, kepler",
        {"gpus": "1", "gpu_arch": "hoper"},
        {"gpu_arch": "kepler"},
    ),
    (
        "none for all of them at once",
        {"gpus": "1", "gpu_arch": "kepler", "trait:CUSTOM_GPU_NUMA_4": "required"},
        {"gpu_arch": "fermi"},
    ),
    (
        "no host has GPUs with CUSTOM_GPU_BOARD",
        {"gpus": "1", "trait:CUSTOM_GPU_BOARD": "required"},
        {"trait:CUSTOM_GPU_BOARD": None},
    ),
    ("no host has 9 GPUs: the most in one host is 8", {"gpus": "9"}, {"gpus": "3"}),
    ("4 GPUs asked for, at most 3 free in one host", {"gpus": "4"}, {"gpus": "3"}),
    ("4 GPUs asked for, at most 3 free in one host", {"gpus": "4"}, {"deleted": True}),
    (
        "4 instances at once with 2 GPUs each asked for, and not all of them fit; Nova starts "
        "all of them or none",
        {"gpus": "2", "num_instances": 4},
        {"num_instances": 1},
    ),
    ("the requested host has no GPUs", {"gpus": "1", "host": "none"}, {"host": None}),
    ("among the hosts that the project may use", {"gpus": "1", "zone": "empty"}, {"zone": "full"}),
    (
        "2 fitting GPUs are free, but on no host with 200 VCPU",
        {"gpus": "2", "vcpus": 200},
        {"vcpus": 1},
    ),
    ("each is free, but not all at once in one host", _BOTH, {**dict.fromkeys(_BOTH), "gpus": "2"}),
    ("their compute service is down", {"gpus": "1", "down": True}, {"down": False}),
    ("their compute service is disabled", {"gpus": "1", "off": True}, {"off": False}),
    ("the flavor has no GPU; use a flavor with GPUs", {"image_traits": [FERMI]}, _ONE),
    (
        "no host has CUSTOM_NOTHING",
        {"gpus": "1", "resources:CUSTOM_NOTHING": "1"},
        {"resources:CUSTOM_NOTHING": None},
    ),
)
# Entries that say only where to look, and those whose remedy another module does
ELSEWHERE = {
    "no host offers ...": "tests/unit/test_refused_requests.py",
    "no GPU satisfies the flavor": "",
    "2 GPUs ... asked for, and no host has that many free": "",
    "There are not enough hosts available": "",
    "Placement does not say which GPUs there are": "",
    "no guest of any host has room for 4 GPUs": "tests/unit/core/scheduling/test_no_valid_host.py",
    "4 GPUs ... asked for, no free partition": (
        "extensions/fabric/tests/unit/fabric/scheduler/test_partition_reasons.py"
    ),
    "3 GPUs ... asked for on one NUMA node": "tests/unit/osc_gpu/test_hosts.py",
    "the hosts with room keep it": "tests/unit/scheduler/test_filters.py",
    "the guest cannot take GPUs: its machine type": "tests/unit/scheduler/test_filters.py",
    "quota refuses the instance its GPUs": "tests/functional/test_quota.py",
    # GPUFilter's, of one host, and those of openstack gpu capacity
    "its hypervisor is ..., not ...": "tests/unit/scheduler/test_filters.py",
    "it reports no GPUs": "tests/unit/scheduler/test_filters.py",
    "it has GPUs, and [gpu]cpu_only_instances is never": "tests/unit/scheduler/test_filters.py",
    "Placement has no candidate here": "tests/unit/core/scheduling/test_capacity.py",
    "its free GPUs do not serve all request groups": "tests/unit/core/scheduling/test_capacity.py",
    "2 GPUs asked for, it has 1": "tests/unit/core/scheduling/test_capacity.py",
    "it is misspelt, or its extension is not installed": (
        "tests/unit/scheduler/test_request_filter.py"
    ),
    "the instance asks for no device of Nova's own": "tests/unit/scheduler/test_request_filter.py",
}
_SPOT = {"gpus": "1", "gpu:preemptible": "30m"}
FLAVORS: tuple[tuple[str, dict[str, str], Mapping[str, str | None]], ...] = (
    ("exactly the number of GPUs it asks for", {"gpus": "<= 2"}, {"gpus": ">= 2"}),
    ("'two' is not a whole number", {"gpus": "two"}, {"gpus": "2"}),
    ("for no GPU leave the property out", {"gpus": "0"}, {"gpus": None}),
    (
        "is not an operator for a number",
        _ONE | {"gpu:memory_mib": "<in> 9"},
        {"gpu:memory_mib": ">= 9"},
    ),
    (
        "a comma is no part of a name",
        _ONE | {"gpu:model": "A100,H100"},
        {"gpu:model": "<or> A100 <or> H100"},
    ),
    ("no host has that many", {"gpus": "1025"}, {"gpus": "1024"}),
    (
        "compares numbers, but this is a name",
        _ONE | {"gpu_arch": ">= fermi"},
        {"gpu_arch": "s== fermi"},
    ),
    (
        "an '<or>' before every name",
        _ONE | {"gpu_arch": "<or> fermi kepler"},
        {"gpu_arch": "<or> fermi <or> kepler"},
    ),
    ("names are not ordered", _ONE | {"gpu_arch": "s>= fermi"}, {"gpu_arch": "s== fermi"}),
    ("there must be one name", _ONE | {"gpu_arch": "fermi kepler"}, {"gpu_arch": "s== fermi"}),
    ("an unknown value meets no condition", _ONE | {"gpu_arch": "unknown"}, {"gpu_arch": "fermi"}),
    (
        "other properties say the opposite",
        _ONE | {"gpu_arch": "fermi", f"trait:{FERMI}": "forbidden"},
        {f"trait:{FERMI}": None},
    ),
    ("the flavor asks for no GPU", {"gpu_arch": "fermi"}, _ONE),
    (
        "the flavor's resources:PGPU says",
        {"gpus": "2", "resources:PGPU": "1"},
        {"resources:PGPU": "2"},
    ),
    (
        "hypervisor says",
        _ONE | {"hypervisor": "LXC", "hypervisor_type": "QEMU"},
        {"hypervisor": "QEMU"},
    ),
    ("it is not a number of GPUs", {"resources:PGPU": "x"}, {"resources:PGPU": "1"}),
    (
        "it counts the GPUs of resources:PGPU by their model",
        {"resources:PGPU": "2", "resources:CUSTOM_GPU_MODEL_A100": "1"},
        {"resources:CUSTOM_GPU_MODEL_A100": "2"},
    ),
    (
        "its request group asks for no resource",
        _ONE | {f"trait1:{FERMI}": "required"},
        {f"trait1:{FERMI}": None, f"trait:{FERMI}": "required"},
    ),
    (
        "a line feed ends its name",
        {"resources:PGPU\n": "1"},
        {"resources:PGPU\n": None, "resources:PGPU": "1"},
    ),
    (
        "does not have gpu:topology",
        _ONE | {"gpu:topology_policy": "required"},
        {"gpu:topology": "numa"},
    ),
    (
        "it is neither true nor false",
        _ONE | {"gpu:option_rom": "maybe"},
        {"gpu:option_rom": "false"},
    ),
    ("how an instance may be moved", _ONE | {"gpu:move": "fast"}, {"gpu:move": "cold"}),
    (
        "whether a stopped instance keeps its GPUs",
        _ONE | {"gpu:on_stop": "x"},
        {"gpu:on_stop": "keep"},
    ),
    (
        "it is not the minimum time",
        _ONE | {"gpu:preemptible": "soon", "gpu:on_preempt": "delete"},
        {"gpu:preemptible": "30m"},
    ),
    ("a stopped instance would keep its GPUs", _SPOT, {"gpu:on_stop": "release"}),
    (
        "the vGPUs of an instance are of one type",
        {"vgpus": "1", "vgpu_type": "<or> a <or> b"},
        {"vgpu_type": "a"},
    ),
    (
        "unknown property; did you mean",
        _ONE | {"gpu_archs": "fermi"},
        {"gpu_archs": None, "gpu_arch": "fermi"},
    ),
)


def page(title: str) -> str:
    """Return the section *title* of the page."""
    text = (ROOT / "doc/source/admin/troubleshooting-requests.rst").read_text()
    return text.partition(f"\n{title}\n===")[2].partition("\n.. _")[0]


class EntriesTest(unittest.TestCase):
    def test_each_entry_has_its_remedy_done(self) -> None:
        done = [text for text, *_ in (*REQUESTS, *FLAVORS)] + list(ELSEWHERE)
        entries = re.findall(
            r"(?m)^``.*(?=\n   )", page("No valid host") + page("A flavor is refused")
        )
        self.assertGreater(len(entries), 50)
        for entry in entries:
            patterns = [messages.pattern(text) for text in re.findall("``(.+?)``", entry)]
            self.assertTrue(
                any(
                    re.search(pattern, text) or text in entry
                    for pattern in patterns
                    for text in done
                ),
                entry,
            )
        for module in filter(None, ELSEWHERE.values()):
            self.assertTrue((ROOT / module).is_file(), module)

    def test_each_flavor(self) -> None:
        for text, specs, remedy in FLAVORS:
            with self.subTest(text):
                self.assertIn(text, " ".join(validation.mistakes(request.of(specs))))
                changed = {
                    key: value for key, value in {**specs, **remedy}.items() if value is not None
                }
                self.assertEqual([], validation.mistakes(request.of(changed)), changed)


class RequestsTest(RequestFilterTestCase):
    def setUp(self) -> None:
        super().setUp()
        # All are new instances.
        self.useFixture(fixtures.MockPatchObject(objects.BuildRequest, "get_by_instance_uuid"))

    def test_each_request(self) -> None:
        self.assertIn("no host offers GPUs", self.fault(request_spec(_ONE)))
        zones = {"one": uuids.full, "two": uuids.full, "none": uuids.empty}
        self.hosts = {
            name: self.placement.add_host(name, aggregates=[zone]) for name, zone in zones.items()
        }
        fermi = self.placement.add_group(self.hosts["one"], 8, sets={"CUSTOM_GPU_NUMA_4"})
        self.held = {fermi: {"PGPU": 5}}
        self.placement.add_group(self.hosts["two"], 2, "kepler", product_id="1023")
        for text, words, remedy in REQUESTS:
            with self.subTest(text, remedy=remedy):
                self.assertIn(text, self.refused(words) or "not refused")
                self.assertEqual("", self.refused(words | remedy))

    def refused(self, words: Mapping[str, Any]) -> str:
        """Return the fault of a request of these *words*, empty if it passes.

        Words other than extra specs are about the cloud, and about the request.
        """
        left = {key: value for key, value in words.items() if value is not None}
        self.placement.api.delete(f"/allocations/{uuids.holder}", version="1.36")
        if not left.pop("deleted", False):
            self.placement.allocate(self.held, uuids.holder)
        is_down, is_off = left.pop("down", False), left.pop("off", False)
        for host in self.hosts.values():
            self.services[host] = not is_down
            if is_off:
                self.placement.mark(host, _DISABLED)
        zone, name, count = (left.pop(key, None) for key in ("zone", "host", "num_instances"))
        of_spec = {key: left.pop(key) for key in ("vcpus", "image_traits") if key in left}
        aggregates = [getattr(uuids, zone)] if zone else []
        spec = request_spec(left, aggregates=aggregates, **of_spec)
        spec.root_forbidden.add(_DISABLED)  # as Nova's own filter does
        if name:
            spec.requested_destination = objects.Destination(host=name)
        if count:
            spec.num_instances = count
        try:
            return self.fault(spec)
        finally:
            for host in self.hosts.values() if is_off else ():
                self.placement.mark(host, _DISABLED, without=True)

    def fault(self, spec: objects.RequestSpec) -> str:
        try:
            self.run_both(spec)
        except nova_exception.RequestFilterFailed as error:
            return str(error.message)
        return ""
