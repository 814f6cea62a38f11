# SPDX-License-Identifier: Apache-2.0
"""What the properties found, by name: each of these once raised, hung, or was offered."""

from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.core.flavor import request_group
from nova_gpu.host import nodes
from nova_gpu.host.state import files
from nova_gpu.host.vfio import binding
from nova_gpu.virt.usage import domains
from tests.fixtures import hosts, kernel


class FoundTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.build("two-architectures", self.root / "host")
        self.card = self.host.gpus()[0]

    def test_a_drivers_file_that_is_no_text(self) -> None:
        information = self.host.roots.proc / f"driver/nvidia/gpus/{self.card.address}/information"
        for content in (b"Device Minor: \xff", b"Device Minor: " + b"9" * 5000):
            information.write_bytes(content)
            self.assertEqual((), nodes.own_nodes(self.card, self.host.roots))

    def test_ids_of_more_than_four_digits(self) -> None:
        for content in ("0x12345", "-0x10de"):
            (self.host.path(str(self.card.address)) / "device").write_text(content)
            self.assertNotIn(self.card.address, [g.address for g in self.host.gpus()])

    def test_a_domain_that_cannot_be_read_is_not_one_without_gpus(self) -> None:
        address = "<address domain='0x' bus='x'/>"
        hostdev = f"<hostdev type='pci'><source>{address}</source></hostdev>"
        for xml in ("<domain", f"<domain><devices>{hostdev}</devices></domain>"):
            self.assertRaises(
                exception.DomainsUnreadable, domains.gpus_in, xml, domains.Parts({}, {})
            )

    def test_a_space_that_is_none_to_int(self) -> None:
        for word in ("resources:PGPU", "resources1:VGPU"):
            resource_class = word.partition(":")[2]
            (group,) = request_group.parse({word: " 2\n"}, resource_class).values()
            self.assertEqual(2, group.count)
            self.assertRaises(
                *(exception.InvalidExtraSpec, request_group.parse),
                *({word: "2\x1f"}, resource_class),
            )

    def test_a_former_driver_that_is_no_name(self) -> None:
        kernel.boot(self.host, "1")
        folder, card = self.root / "gpu-bindings", model.PciAddress(0, 4, 0, 0)
        binding.record(folder, card, {card: binding.FormerDriver("a")}, self.host.roots)
        (file,) = folder.iterdir()
        for driver in ('""', '"../../nvidia"', "0", "false", "[]"):
            file.write_text(f'{{"boot_id": "1", "functions": {{"{card}": {driver}}}}}')
            self.assertRaises(
                files.Untrusted, binding.former_drivers, folder, card, self.host.roots
            )
        file.write_bytes(b"\xff")
        self.assertRaises(files.Untrusted, binding.former_drivers, folder, card, self.host.roots)
