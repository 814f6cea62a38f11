# SPDX-License-Identifier: Apache-2.0
"""GPUs that reach each other, from the flavor to the domain."""

from __future__ import annotations

from tests.fixtures import hosts, processors
from tests.functional import kvm
from tests.functional.base import Server

# Ampere takes QEMU 8.1, and any libvirt 8.2; Nova's stand-in has older ones.
_VERSIONS = {"libvirt_version": 9000000, "qemu_version": 8002002}
_NAMES = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}


class PeersTest(kvm.KVMServersTestBase):
    """The first host's root complex passes requests on, the second one's is not known to."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host(**_VERSIONS)

    def prepare(self, host: hosts.Host) -> None:
        if len(self.hosts) == 1:
            processors.write(host.roots.proc, processors.EPYC)

    def test_to_another_host(self) -> None:
        preferring, insisting = (
            self.boot(self.flavor(gpus="= 2", **{"gpu:peer_access": word}))
            for word in ("preferred", "required")
        )
        self.start_host("host2", **_VERSIONS)
        for server in (preferring, insisting):
            self.assertEqual(["0"] * 2, self.cliques(server))
        self._migrate_server(preferring)
        self.confirm(preferring, source="host1")
        self.assertEqual([], self.cliques(preferring, "host2"))
        messages = self.refused({"migrate": None}, insisting)
        self.assertTrue(messages)
        self.assertEqual(["0"] * 2, self.cliques(insisting))

    def cliques(self, server: Server, host: str = "host1") -> list[str]:
        """Of the devices that have one, in the domain's order"""
        domain = self.domain(server, host)
        values = []
        for alias in domain.xpath("devices/hostdev/alias/@name"):
            path = f"qemu:override/qemu:device[@alias='{alias}']/qemu:frontend/qemu:property"
            (element,) = domain.xpath(path, namespaces=_NAMES)
            self.assertEqual("x-nv-gpudirect-clique", element.get("name"))
            values.append(element.get("value"))
        return values
