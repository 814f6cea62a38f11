# SPDX-License-Identifier: Apache-2.0
"""Each system call on each kind of file of state fails once, wherever it is made."""

from __future__ import annotations

import os
import uuid

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.host.state import files, former_drivers, proofs, quarantine
from nova_gpu.host.state.former_drivers import Former
from nova_gpu.host.vfio import boot_configuration
from nova_gpu.virt import counters
from nova_gpu.virt.delivery import made_vgpus
from nova_gpu.virt.health import failed_starts, xids
from nova_gpu.virt.inventory import provider_tree
from tests.fixtures import cards
from tests.fixtures.bases.files_failing import BOOT, ONE, TWO, FailingCallsTestCase, Kind

CARD, OTHER = cards.card(str(ONE)), cards.card(str(TWO))
SLOT = Slot(ONE, "1g.18gb", 900)
BOOT_FILES = (boot_configuration.MODPROBE, boot_configuration.GRUB)
SEEN = proofs.Seen({"nvidia": "GPU-1"}, (str(ONE), str(TWO)), BOOT)
UUID, KEY = str(uuid.UUID(int=7)), GroupKey("10de", "2335", DeliveryMode.LXC)
NEW_KEY = GroupKey("10de", "2336", DeliveryMode.LXC)


class FilesTest(FailingCallsTestCase):
    def test_changes(self) -> None:
        self.check_changes(self.kinds())

    def test_reads(self) -> None:
        self.check_reads(self.kinds())

    def kinds(self) -> dict[str, Kind]:
        roots, entry = self.host.roots, quarantine.entry
        formers = {ONE: Former("nvidia", "override")}
        return {
            "quarantine": Kind(
                lambda at: [quarantine.put(at / "q", entry(c, "a", "b")) for c in (CARD, OTHER)],
                (
                    lambda at: quarantine.put(at / "q", entry(CARD, "worse", "b", seen=SEEN)),
                    lambda at: quarantine.release(at / "q", TWO),
                ),
                lambda at: {
                    a: "not understood" if "cannot be understood" in e.reason else e.reason
                    for a, e in quarantine.load(at / "q").items()
                },
                lost="not understood",  # and so it stays there
            ),
            "proofs": Kind(
                lambda at: proofs.write(at / "p", TWO, OTHER, SEEN, "reset", None),
                (
                    lambda at: proofs.write(at / "p", ONE, CARD, SEEN, "reset", None),
                    lambda at: proofs.revoke(at / "p", [TWO]),
                ),
                lambda at: {
                    each.address: proofs.holds(at / "p", each.address, each, SEEN)
                    for each in (CARD, OTHER)
                },
                lost=False,  # it is cleaned
            ),
            "former drivers": Kind(
                lambda at: former_drivers.save(at / "f", TWO, formers, roots),
                (
                    lambda at: former_drivers.save(at / "f", ONE, formers, roots),
                    lambda at: former_drivers.forget(at / "f", TWO),
                ),
                lambda at: [former_drivers.load(at / "f", each, roots) for each in (ONE, TWO)],
            ),
            "vGPUs": Kind(
                lambda at: made_vgpus.MadeVGPUs(at / "v").add(SLOT, UUID, {"1g.18gb": "name"}),
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
                    vgpu.Kind.TYPED, ONE, "", OSError(), is_its_own=True
                ),
                (
                    lambda at: failed_starts.FailedStarts(at / "s", roots).failed(
                        vgpu.Kind.TYPED, TWO, "", OSError(), is_its_own=True
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
                    {each: boot_configuration.HEAD + "1\n" for each in BOOT_FILES}, at
                ),
                (
                    lambda at: boot_configuration.write(
                        {boot_configuration.MODPROBE: boot_configuration.HEAD + "2\n"}, at
                    ),
                    lambda at: boot_configuration.write({boot_configuration.GRUB: None}, at),
                ),
                lambda at: {
                    each: files.read(at / each)
                    for each in BOOT_FILES
                    if os.path.basename(each) in files.names((at / each).parent)
                },
            ),
        }
