# SPDX-License-Identifier: Apache-2.0
"""Which cards processes of a generated host have open."""

from __future__ import annotations

from collections.abc import Mapping

import fixtures
import nova.privsep
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery import open_cards
from tests.fixtures import hosts, pci

CARD = "0000:3b:00.0"


class OpenCardsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        config = self.useFixture(config_fixture.Config(CONF)).config
        for name in ("sysfs", "dev", "proc"):
            config(group="gpu", **{f"{name}_root": str(getattr(self.host.roots, name))})
        self.host.add_gpu(CARD, "10de", "2335", companions=[pci.AUDIO])
        self.cards = open_cards.OpenCards(self.host.roots)

    def reasons(self) -> Mapping[PciAddress, str]:
        selected = selection.Selection.parse(["10de"], [], [])
        return self.cards.reasons(discovery.discover(self.host.roots, selected, {}, dict))

    def test_what_a_process_of_the_host_has_open(self) -> None:
        in_process = fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        self.useFixture(in_process)
        device = self.host.path(CARD) / "drm/card0"
        device.mkdir(parents=True)
        (device / "dev").write_text("1:3\n")
        process = self.host.roots.proc / "812"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(b"nvidia-persistenced\0")
        (process / "fd/7").symlink_to("/dev/null")
        (reason,) = self.reasons().values()
        self.assertEqual("it is in use by processes of the host; end that first", reason)
        self.reasons()
        said = f"GPU {CARD} is not offered while the host uses it: nvidia-persistenced (pid 812)"
        self.assertEqual(1, self.log.output.count(said))
        for address in (CARD, CARD.replace(".0", ".1")):
            self.host.bind(address, "vfio-pci")
        self.assertEqual({}, self.reasons())

    def test_without_privsep_it_is_not_asked(self) -> None:
        broken = fixtures.MockPatch("nova_gpu.privsep.vfio.in_use", side_effect=TypeError("helper"))
        self.useFixture(broken)
        self.assertEqual({}, self.reasons())
        self.assertIn(
            "Cannot tell whether a process has a GPU open, so all count as free: helper",
            self.log.output,
        )
