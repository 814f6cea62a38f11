# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from nova import exception as nova_exception

from nova_gpu.api import extra_spec_validators
from nova_gpu.core import exception, names
from nova_gpu.core.flavor import (
    condition,
    gpu_extra_specs,
    parsers,
    query,
    request,
    request_group,
    validation,
)
from tests.fixtures.bases import fuzz as base

_OPERATORS = ["=", "==", ">=", "!=", "<=", "s==", "s!=", "s<", "<in>", "<or>", "<all-in>"]
_NAMES = ["fermi", "Hopper", "XE-HPC", "LXC", "KVM", "qemu", "unknown", "a.b+c", "__", ""]
_WORDS = st.sampled_from(_OPERATORS + _NAMES) | st.integers().map(str) | base.TEXT
_VALUES = st.lists(_WORDS, max_size=5).map(" ".join) | base.TEXT
_SUFFIX = st.sampled_from(["", "", "1", "_gpu", "-x"]) | base.TEXT
_TRAITS = st.sampled_from(
    [
        names.TRAIT_GPU,
        "CUSTOM_GPU_ARCH_FERMI",
        "CUSTOM_GPU_ARCH_UNKNOWN",
        "CUSTOM_GPU_HYPERVISOR_LXC",
        "CUSTOM_GPU_MODEL_FERMI",
        "CUSTOM_GPU_MEMORY_MIB_5301",
        "CUSTOM_GPU_MEMORY_MIB_UNKNOWN",
        "CUSTOM_GPU_NUMA_ISLAND_2",
        "HW_GPU_API_VULKAN",
        "HW_CPU_X86_AVX",
    ]
)
_KEYS = (
    st.sampled_from(gpu_extra_specs.NAMES)
    | _SUFFIX.map(lambda suffix: f"resources{suffix}:PGPU")
    | st.sampled_from(["resources:VCPU", "resources:VGPU", "group_policy", "hw:mem_page_size"])
    | st.tuples(_SUFFIX, _TRAITS).map(lambda pair: f"trait{pair[0]}:{pair[1]}")
    | base.TEXT
)
_COUNTS = st.integers(0, 1025).map(str) | st.integers(0, 9).map(lambda n: f"= {n}")
_VERDICTS = st.sampled_from(["required", "forbidden", "preferred"])
FLAVORS = st.dictionaries(_KEYS, _COUNTS | _VERDICTS | _VALUES, max_size=8)

# Such that ask for something, more often than not: of the others there is little to read.
_ASKING = st.fixed_dictionaries(
    {},
    optional={
        names.GPUS: st.integers(1, 4).map(str),
        names.GPU_ARCH: st.sampled_from(_NAMES) | _VALUES,
        names.HYPERVISOR: st.sampled_from(_NAMES) | _VALUES,
        names.MODEL: st.sampled_from(_NAMES) | _VALUES,
        names.MEMORY_MIB: st.sampled_from([">= 1", "== 5301", "<= 9", "7"]) | _VALUES,
        names.TOPOLOGY: st.sampled_from(["any", "numa", "nvlink"]),
        names.TOPOLOGY_POLICY: st.sampled_from(["required", "preferred"]),
        names.VGPUS: st.integers(1, 4).map(str),
        names.VGPU_TYPE: st.sampled_from(_NAMES) | _VALUES,
        names.HEADS: st.sampled_from([">= 1", "== 4", "7"]) | _VALUES,
        "resources:PGPU": st.integers(0, 4).map(str),
        "resources1:PGPU": st.integers(0, 4).map(str),
        "resources:VGPU": st.sampled_from(["0", "1"]),
        "trait:CUSTOM_GPU_ARCH_FERMI": _VERDICTS,
        "trait1:CUSTOM_GPU": _VERDICTS,
    },
)


class FlavorTest(base.FuzzTestCase):
    @base.fuzzed(flavor=FLAVORS | _ASKING)
    def test_is_read_or_refused(self, flavor: Mapping[str, str]) -> None:
        read = request.of(flavor)
        validation.mistakes(read)  # ends
        for asks, ask in (
            (read.asks_for_gpus, lambda: read.whole),
            (bool(read.vgpu_words), lambda: read.vgpus),
        ):
            try:
                device_request = ask()
            except exception.InvalidExtraSpec as error:
                self.assertIn(error.key, flavor)
                continue
            self.assertEqual(asks, device_request is not None)
            if device_request:
                self.assertTrue(
                    0 < device_request.count == sum(group.count for group in device_request.groups)
                )

    @base.fuzzed(flavor=FLAVORS | _ASKING, known=st.sets(_TRAITS))
    def test_as_a_query_it_asks_for_the_same(
        self, flavor: Mapping[str, str], known: set[str]
    ) -> None:
        try:
            read = request.of(flavor)
            gpu_request, vgpus = read.whole, read.vgpus
            specs = query.extra_specs(flavor, gpu_request, known) if gpu_request else None
            of_vgpus = query.extra_specs(flavor, vgpus, known) if vgpus else None
        except exception.InvalidExtraSpec:
            return
        if gpu_request and specs is not None:
            again = request.of(specs).whole
            assert again is not None
            self.assertEqual(gpu_request.count, again.count)
            self.assertEqual(gpu_request.architecture, again.architecture)
            self.assertEqual(specs, query.extra_specs(specs, again, known))
        if vgpus and of_vgpus is not None:
            same = request.of(of_vgpus).vgpus
            assert same is not None
            self.assertEqual((vgpus.count, vgpus.type), (same.count, same.type))
            self.assertEqual(of_vgpus, query.extra_specs(of_vgpus, same, known))

    @base.fuzzed(value=_VALUES)
    def test_the_api_takes_what_the_scheduler_reads(self, value: str) -> None:
        for validator in extra_spec_validators.register():
            try:
                validator.validate(validator.name, value)
            except nova_exception.ValidationError:
                continue
            if validator.name == names.GPUS:
                parsed = request.of({names.GPUS: value}).whole
                assert parsed is not None
                self.assertTrue(1 <= parsed.count <= request_group.MAX_GPUS)
            elif validator.name == names.OPTION_ROM:
                parsers.parse_switch(names.OPTION_ROM, {names.OPTION_ROM: value}, otherwise=True)
            elif validator.name == names.GUEST_TOPOLOGY:
                request.of({names.GUEST_TOPOLOGY: value}).check_guest_options()
            elif validator.name != names.HYPERVISOR_TYPE:
                plain = {names.GPUS: "1", names.TOPOLOGY: "any"}
                read = request.of(plain | {validator.name: value}).whole
                self.assertIsNotNone(read)

    @base.fuzzed(value=_VALUES, name=st.none() | st.sampled_from(_NAMES) | base.TEXT)
    def test_what_is_not_known_satisfies_nothing(self, value: str, name: str | None) -> None:
        try:
            read = condition.parse_name(names.GPU_ARCH, value)
        except exception.InvalidExtraSpec:
            return
        if names.word(name) is None:
            self.assertFalse(read.matches(name))
