# SPDX-License-Identifier: Apache-2.0
"""Files of state as releases write them: the former one's, and those of one that says more.

The texts are literal, so that a change of both sides of a file shows. A host goes back to a former
release as well: what is added to a file is optional, and what it has goes by names.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import fixtures

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.host.state import files, proofs, quarantine
from nova_gpu.host.vfio import binding, boot_configuration
from nova_gpu.host.vfio.binding import FormerDriver
from nova_gpu.virt import counters
from nova_gpu.virt.delivery import made_vgpus
from nova_gpu.virt.health import failed_starts, xids
from nova_gpu.virt.inventory import provider_tree
from tests.fixtures import cards, kernel
from tests.fixtures.bases.files_failing import BOOT, ONE, TWO, FailingCallsTestCase, Kind
from tests.fixtures.bases.host import HostTestCase

(ADDRESS,) = cards.addresses("0000:88:00.0")
CARD, UUID = cards.card(str(ADDRESS)), str(uuid.UUID(int=7))
SEEN = quarantine.Seen({"nvidia": "GPU-1"}, (str(ADDRESS),), BOOT)
SEEN_FIELDS = {"identity": {"nvidia": "GPU-1"}, "addresses": [str(ADDRESS)], "boot_id": BOOT}
SINCE = "2026-11-21T15:40:11+00:00"
KEY = GroupKey("10de", "2335", DeliveryMode.LXC)
SLOT = Slot(ADDRESS, "1g.18gb", 900)


@dataclasses.dataclass(frozen=True)
class File:
    """A file's name, its content, and what ``read`` makes of that in the folder of state.

    ``added`` are its keys that former releases did not write, and ``before`` what is read without.
    """

    name: str
    content: Mapping[str, Any]
    read: Callable[[pathlib.Path], Any]
    right: Any
    added: tuple[str, ...] = ()
    before: Any = None


class FilesOfReleasesTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger(level=100))
        self.host.add_gpu(str(ADDRESS), "10de", "2335")
        kernel.boot(self.host, BOOT)
        self.state = self.root / "state"

    def files(self) -> tuple[File, ...]:
        roots = self.host.roots
        inode = (roots.sysfs / "bus/pci/devices" / str(ADDRESS)).stat().st_ino
        product = CARD.product.key
        entry = quarantine.Entry(ADDRESS, product, "a", "b", SINCE, False, BOOT, SEEN, "reset")
        former = {ADDRESS: FormerDriver("nvidia", "vfio-pci")}
        counted = counters.Counters(3, 2, {"GPUBusy": 1}, {"clean": 2}, {"clean": 1.5})
        return (
            File(
                f"gpu-quarantine/{ADDRESS}.json",
                {
                    "address": str(ADDRESS),
                    "product": CARD.product.key,
                    "reason": "a",
                    "remedy": "b",
                    "since": SINCE,
                    "cleaning": False,
                    "until_boot": BOOT,
                    "seen": SEEN_FIELDS,
                    "asks": "reset",
                },
                lambda at: quarantine.load(at / "gpu-quarantine"),
                {ADDRESS: entry},
                ("until_boot", "seen", "asks"),
                {ADDRESS: dataclasses.replace(entry, until_boot=None, seen=None, asks=None)},
            ),
            File(
                f"gpu-clean/{ADDRESS}.json",
                {
                    "device": str(ADDRESS),
                    "product": CARD.product.key,
                    "by": "reset",
                    "after": UUID,
                    "since": SINCE,
                    "seen": SEEN_FIELDS,
                },
                lambda at: proofs.holds(at / "gpu-clean", ADDRESS, CARD, SEEN),
                True,
            ),
            File(
                f"gpu-bindings/{ADDRESS}.json",
                {
                    "boot_id": BOOT,
                    "functions": {str(ADDRESS): "nvidia"},
                    "overrides": {str(ADDRESS): "vfio-pci"},
                },
                lambda at: binding.former_drivers(at / "gpu-bindings", ADDRESS, roots),
                former,
                ("overrides",),
                {ADDRESS: FormerDriver("nvidia")},
            ),
            File(
                f"gpu-vgpus/{UUID}@{ADDRESS}@1g.18gb@900",
                {"1g.18gb": "MIG 1g.18gb"},
                lambda at: (
                    made_vgpus.MadeVGPUs(at / "gpu-vgpus").instances(),
                    made_vgpus.MadeVGPUs(at / "gpu-vgpus").recorded_types()[ADDRESS].keys(),
                ),
                ({SLOT: UUID}, {"1g.18gb"}),
                ("1g.18gb",),
                ({SLOT: UUID}, set()),
            ),
            File(
                "gpu-providers",
                {"node": "host1", "providers": {"host1_gpu_10de_2335_lxc": UUID}},
                lambda at: provider_tree.Providers(at / "gpu-providers").of(None, "host1", [KEY]),
                {KEY: UUID},
            ),
            File(
                "gpu-kernel-log",
                {"boot_id": BOOT, "sequence": 7},
                lambda at: kernel_log.load(at / "gpu-kernel-log"),
                kernel_log.Position(BOOT, 7),
            ),
            File(
                "gpu-withheld-instances",
                {"boot_id": BOOT, "instances": [[str(ADDRESS), "9/0"]]},
                lambda at: xids.FaultyInstances(at / "gpu-withheld-instances").of_boot(BOOT),
                {(ADDRESS, "9/0")},
            ),
            File(
                "gpu-failed-starts",
                {"boot_id": BOOT, "functions": [[str(ADDRESS), inode, 3]]},
                lambda at: set(
                    failed_starts.FailedStarts(at / "gpu-failed-starts", roots).unavailable()
                ),
                {ADDRESS},
            ),
            File(
                "gpu-counters.json",
                {
                    "claims": 3,
                    "vgpu_claims": 2,
                    "failures": {"GPUBusy": 1},
                    "cleanings": {"clean": 2},
                    "cleaning_seconds": {"clean": 1.5},
                },
                counters.read,
                counted,
                ("vgpu_claims",),
                dataclasses.replace(counted, vgpu_claims=0),
            ),
        )

    def read(self, file: File, content: Mapping[str, Any]) -> Any:
        path = self.state / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return file.read(self.state)

    def test_of_this_release(self) -> None:
        for file in self.files():
            with self.subTest(file.name):
                self.assertEqual(file.right, self.read(file, file.content))

    def test_of_one_that_says_more(self) -> None:
        for file in self.files():
            with self.subTest(file.name):
                more = {"more": {"is": ["known"]}, **file.content, "later": 1}
                self.assertEqual(file.right, self.read(file, more))

    def test_of_a_former_one(self) -> None:
        for file in self.files():
            with self.subTest(file.name):
                less = {name: file.content[name] for name in file.content.keys() - file.added}
                expected = file.before if file.added else file.right
                self.assertEqual(expected, self.read(file, less))


FIRST_CARD, OTHER = cards.card(str(ONE)), cards.card(str(TWO))
FIRST_SLOT = Slot(ONE, "1g.18gb", 900)
BOOT_FILES = (boot_configuration.MODPROBE, boot_configuration.GRUB)
SEEN_TWO = proofs.Seen({"nvidia": "GPU-1"}, (str(ONE), str(TWO)), BOOT)
NEW_KEY = GroupKey("10de", "2336", DeliveryMode.LXC)


class FilesTest(FailingCallsTestCase):
    """Each system call on each kind of file of state fails once, wherever it is made."""

    def test_changes(self) -> None:
        self.check_changes(self.kinds())

    def test_reads(self) -> None:
        self.check_reads(self.kinds())

    def kinds(self) -> dict[str, Kind]:
        roots, entry = self.host.roots, quarantine.entry
        formers = {ONE: FormerDriver("nvidia", "override")}
        return {
            "quarantine": Kind(
                lambda at: [
                    quarantine.put(at / "q", entry(c, "a", "b")) for c in (FIRST_CARD, OTHER)
                ],
                (
                    lambda at: quarantine.put(
                        at / "q", entry(FIRST_CARD, "worse", "b", seen=SEEN_TWO)
                    ),
                    lambda at: quarantine.release(at / "q", TWO),
                ),
                lambda at: {
                    a: "not understood" if "cannot be understood" in e.reason else e.reason
                    for a, e in quarantine.load(at / "q").items()
                },
                lost="not understood",  # and so it stays there
            ),
            "proofs": Kind(
                lambda at: proofs.write(at / "p", TWO, OTHER, SEEN_TWO, "reset", None),
                (
                    lambda at: proofs.write(at / "p", ONE, FIRST_CARD, SEEN_TWO, "reset", None),
                    lambda at: proofs.revoke(at / "p", [TWO]),
                ),
                lambda at: {
                    card.address: proofs.holds(at / "p", card.address, card, SEEN_TWO)
                    for card in (FIRST_CARD, OTHER)
                },
                lost=False,  # it is cleaned
            ),
            "former drivers": Kind(
                lambda at: binding.record(at / "f", TWO, formers, roots),
                (
                    lambda at: binding.record(at / "f", ONE, formers, roots),
                    lambda at: binding.record(at / "f", TWO, {}, roots),
                ),
                lambda at: [
                    binding.former_drivers(at / "f", address, roots) for address in (ONE, TWO)
                ],
            ),
            "vGPUs": Kind(
                lambda at: made_vgpus.MadeVGPUs(at / "v").add(
                    FIRST_SLOT, UUID, {"1g.18gb": "name"}
                ),
                (lambda at: made_vgpus.MadeVGPUs(at / "v").add(Slot(TWO, "1g.18gb", 900), UUID),),
                lambda at: set(made_vgpus.MadeVGPUs(at / "v").instances()),
                set(),
            ),
            "kernel's log": Kind(
                lambda at: kernel_log.save(at / "k", kernel_log.Position(BOOT, 7)),
                (lambda at: kernel_log.save(at / "k", kernel_log.Position(BOOT, 8)),),
                lambda at: kernel_log.load(at / "k"),
                None,  # all of it is read
            ),
            "withheld instances": Kind(
                lambda at: xids.FaultyInstances(at / "w").add(BOOT, {(ONE, "9/0")}),
                (lambda at: xids.FaultyInstances(at / "w").add(BOOT, {(TWO, "9/0")}),),
                lambda at: xids.FaultyInstances(at / "w").of_boot(BOOT),
            ),
            "failed starts": Kind(
                lambda at: failed_starts.FailedStarts(at / "s", roots).failed(
                    vgpu.VGPUKind.TYPED, ONE, "EIO", OSError(), is_its_own=True
                ),
                (
                    lambda at: failed_starts.FailedStarts(at / "s", roots).failed(
                        vgpu.VGPUKind.TYPED, TWO, "EBUSY", OSError(), is_its_own=True
                    ),
                ),
                lambda at: set(failed_starts.FailedStarts(at / "s", roots)._counts),
                set(),  # each may be tried again
            ),
            "providers": Kind(
                lambda at: provider_tree.Providers(at / "t").keep("host1", {KEY: UUID}),
                (lambda at: provider_tree.Providers(at / "t").keep("host1", {NEW_KEY: UUID}),),
                lambda at: provider_tree.Providers(at / "t")._load("host1"),
                None,  # Placement is asked
                is_void=True,
            ),
            "counters": Kind(
                lambda at: (counters.begin(at), counters.claimed(1, 0)),
                (lambda at: counters.claimed(1, 0),),
                lambda at: min(2, counters.read(at).claims),
                0,
            ),
            "boot files": Kind(
                lambda at: boot_configuration.write(
                    {name: boot_configuration.HEAD + "1\n" for name in BOOT_FILES}, at
                ),
                (
                    lambda at: boot_configuration.write(
                        {boot_configuration.MODPROBE: boot_configuration.HEAD + "2\n"}, at
                    ),
                    lambda at: boot_configuration.write({boot_configuration.GRUB: None}, at),
                ),
                lambda at: {
                    name: files.read(at / name)
                    for name in BOOT_FILES
                    if os.path.basename(name) in files.names((at / name).parent)
                },
            ),
        }
