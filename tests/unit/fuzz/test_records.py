# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import strategies as st

from nova_gpu.core import exception, model
from nova_gpu.core.scheduling import stats
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, quarantine
from nova_gpu.host.vfio import binding
from tests.fixtures import cards, damage, hosts, kernel
from tests.fixtures.bases import fuzz as base

_CARD = model.PciAddress.parse("0000:04:00.0")
_BOOT = "6f0e5a3c"
_TEXTS = (
    base.JSON.map(json.dumps) | base.TEXT | st.sampled_from(["[" * 20_000, "1e999", "NaN", "{"])
)


def _with(fields: dict[str, Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """*fields*, of which one or another has an odd value or is not there"""
    strategies = {key: st.just(value) | odd for key, value in fields.items()}
    return st.fixed_dictionaries({}, optional=strategies) | st.fixed_dictionaries(strategies)


_ODD = base.JSON | st.sampled_from([2**64, 1e308, float("inf"), "9" * 5000])
_GROUP = {
    "product": "10de:1091",
    "architecture": None,
    "mode": "lxc",
    "total": 8,
    "model": "Tesla M2090",
    "memory_mib": 5301,
    "islands": {"numa": 4, "nvlink": 1},
}
_STATS = _with(
    {
        "v": 2,
        "hypervisor": "LXC",
        "groups": [_GROUP],
        "free": [[[0, 0, -1, -1, 4]]],
        "reserved_per_free_gpu": {"vcpus": 2, "memory_mib": 4096},
    },
    st.lists(_with(_GROUP, _ODD), max_size=2) | _ODD,
)
_INSTANCE_OF_NVML = {
    "gpu_instance": 9,
    "compute_instance": 0,
    "name": "NVIDIA H200 MIG 1g.18gb",
    "uuid": "MIG-1",
    "memory_mib": 16384,
    "slices": 1,
}
_CARD_OF_NVML = {
    "address": "00000000:19:00.0",
    "name": "NVIDIA H200",
    "architecture": 9,
    "memory": 150754820096,
    "compute_capability": [9, 0],
    "uuid": "GPU-1",
    "nvlinks": [["00000000:05:00.0", 2]],
    "mig": [_INSTANCE_OF_NVML],
}
_MIG = _ODD | st.lists(_with(_INSTANCE_OF_NVML, _ODD), max_size=2)
_NVML = _with({"gpus": [_CARD_OF_NVML]}, st.lists(_with(_CARD_OF_NVML, _MIG), max_size=2) | _ODD)
_FORMER = _with(
    {
        "boot_id": _BOOT,
        "functions": {str(_CARD): "nouveau"},
        "overrides": {str(_CARD): "nouveau"},
    },
    _ODD | st.dictionaries(st.sampled_from([str(_CARD), "x"]) | base.TEXT, _ODD, max_size=2),
)
_QUARANTINED = _with(
    {
        "address": str(_CARD),
        "product": "10de:2335",
        "reason": "a stain",
        "remedy": "wipe it",
        "since": "2026-11-21T15:40:11+00:00",
        "cleaning": False,
    },
    _ODD,
)


class ReportedTest(base.FuzzTestCase):
    @base.fuzzed(text=_STATS.map(json.dumps) | _TEXTS)
    def test_stats_of_a_host(self, text: str) -> None:
        try:
            read = stats.loads(text)
        except exception.InvalidStats:
            return
        self.assertEqual(read, stats.loads(stats.dumps(read)))
        for group in read.host.groups:
            self.assertGreaterEqual(group.total, 0)
            self.assertIsInstance(group.model, str | None)
        self.assertGreaterEqual(read.free_gpus, 0)

    @base.fuzzed(text=_NVML.map(json.dumps) | _TEXTS)
    def test_an_answer_about_nvml(self, text: str) -> None:
        try:
            # The answer of a process, whose starting has tests of its own
            facts = nvml._parse(text.encode("utf-8", "replace"))
        except nvml.NoAnswer:
            return
        for card_facts in facts.values():
            self.assertIsInstance(card_facts.name, str | None)
            self.assertIsInstance(card_facts.uuid, str | None)
            self.assertIsInstance(card_facts.memory_mib, int | None)
            for instance in card_facts.mig or ():
                self.assertIsInstance(instance.gpu_instance, int)
                self.assertIsInstance(instance.profile, str | None)
                self.assertIsInstance(instance.memory_mib, int | None)
                self.assertIsInstance(instance.slices, int | None)


class KeptTest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.root / "host")
        kernel.boot(host, _BOOT)
        self.roots: Roots = host.roots
        self.folder = self.root / "gpu-bindings"
        nouveau = binding.FormerDriver("nouveau", "nouveau")
        binding.record(self.folder, _CARD, {_CARD: nouveau}, self.roots)
        (self.file,) = self.folder.iterdir()

    def check_formers(self) -> None:
        before = base.open_files()
        try:
            formers = binding.former_drivers(self.folder, _CARD, self.roots)
        except files.Untrusted:
            formers = {}
        for former in formers.values():
            for name in (former.driver, former.override):
                # It becomes part of a path.
                if name is not None:
                    self.assertRegex(name, r"\A[A-Za-z0-9_-]+\Z")
        self.assertEqual(before, base.open_files())

    @base.fuzzed(text=_FORMER.map(json.dumps) | _TEXTS)
    def test_former_drivers(self, text: str) -> None:
        self.file.write_bytes(text.encode("utf-8", "surrogatepass"))
        self.check_formers()

    @base.fuzzed(harm=damage.HARMS, whole=st.booleans())
    def test_former_drivers_in_what_is_no_file(self, harm: damage.Harm, whole: bool) -> None:
        with damage.done(self.folder if whole else self.file, harm):
            self.check_formers()
            binding.recorded(self.folder)


class QuarantineTest(base.FuzzTestCase):
    """Whatever stands in its file, a card is free only where it says that it was being cleaned, or
    that it is about another product."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "gpu-quarantine"
        self.roots = hosts.Host(self.root / "host").roots
        self.card = cards.card(str(_CARD))
        quarantine.put(self.folder, quarantine.entry(self.card, "a stain", "wipe it"))
        (self.file,) = self.folder.iterdir()

    def check(self) -> None:
        before = base.open_files()
        reasons = quarantine.unavailable(self.folder, [self.card], self.roots)
        if not reasons:
            entry = quarantine.load(self.folder).get(_CARD)
            assert entry
            self.assertTrue(entry.cleaning or entry.product != self.card.product.key)
            self.assertIsInstance(entry.product, str)
        self.assertEqual(before, base.open_files())

    @base.fuzzed(text=_QUARANTINED.map(json.dumps) | _TEXTS)
    def test_text(self, text: str) -> None:
        self.file.write_bytes(text.encode("utf-8", "surrogatepass"))
        self.check()

    @base.fuzzed(harm=damage.HARMS, whole=st.booleans())
    def test_what_is_no_file(self, harm: damage.Harm, whole: bool) -> None:
        with damage.done(self.folder if whole else self.file, harm):
            if os.path.lexists(self.file):
                self.check()
