# SPDX-License-Identifier: Apache-2.0
"""Files of state as releases write them: the former one's, and those of one that says more.

The texts are literal, so that a change of both sides of a file shows. A host goes back to a former
release as well: what is added to a file is optional, and what it has goes by names.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import fixtures

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.host.state import former_drivers, proofs, quarantine
from nova_gpu.host.state.former_drivers import Former
from nova_gpu.virt import counters
from nova_gpu.virt.delivery import made_vgpus
from nova_gpu.virt.health import failed_starts, xids
from nova_gpu.virt.inventory import provider_tree
from tests.fixtures import cards, kernel
from tests.fixtures.bases.host import HostTestCase

(ADDRESS,) = cards.addresses("0000:88:00.0")
CARD, BOOT, UUID = cards.card(str(ADDRESS)), "a-boot", str(uuid.UUID(int=7))
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
        entry = quarantine.Entry(ADDRESS, CARD.product.key, "a", "b", SINCE, False, BOOT, SEEN)
        former = {ADDRESS: Former("nvidia", "vfio-pci")}
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
                },
                lambda at: quarantine.load(at / "gpu-quarantine"),
                {ADDRESS: entry},
                ("until_boot", "seen"),
                {ADDRESS: dataclasses.replace(entry, until_boot=None, seen=None)},
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
                lambda at: former_drivers.load(at / "gpu-bindings", ADDRESS, roots),
                former,
                ("overrides",),
                {ADDRESS: Former("nvidia")},
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
