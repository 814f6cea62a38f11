# SPDX-License-Identifier: Apache-2.0
"""The host's PCI Express tree in a KVM guest, from the flavor to the domain and to what the guest
is told of it."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import fixtures
import webob
from nova.api.metadata import base as metadata
from nova.api.metadata import handler
from nova.virt import configdrive

from nova_gpu.api import vendordata
from nova_gpu.conf import CONF
from tests.functional import kvm
from tests.functional.base import Server

_VENDOR_DATA = "openstack/latest/vendor_data2.json"


class GuestTreeTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.drives: list[dict[str, Any]] = []

    def test_each_host_shows_its_own(self) -> None:
        """The first host has two cards on each node; the second one shows no node for its."""
        self._serve_vendordata()
        self.start_host()
        server = self.boot(self.flavor(gpus="= 4", hypervisor="KVM"))
        self.assertGPUs(server, kvm.ALL)
        self.assertEqual({"0", "1"}, set(self.expanders(server)))
        domain = self.domain(server)
        self.assertEqual(["0", "1"], domain.xpath("cpu/numa/cell/@id"))
        self.assertEqual(["0", "1"], domain.xpath("numatune/memnode/@nodeset"))
        document = self.told_by_service(server)
        self.assertEqual([document], self.drives)
        self.assertEqual([0, 1, 2, 3], [device["index"] for device in document["devices"]])
        self.assertEqual([0, 0, 1, 1], [device["numa_node"] for device in document["devices"]])
        addresses = [f"0000:{bus}:00.0" for bus in ("f9", "fb", "fd", "ff")]
        self.assertEqual(addresses, [device["address"] for device in document["devices"]])
        for address in addresses:
            self.assertIn(f'<pci busid="{address}" class="0x030200"/>', document["nccl_topology"])

        self.start_host("host2")
        for address in kvm.ALL:
            (self.hosts["host2"].path(address) / "numa_node").write_text("-1\n")
        self.period("host2")
        self._migrate_server(server)
        self.confirm(server, source="host1")
        self.assertGPUs(server, kvm.ALL, host="host2")
        self.assertEqual([], self.expanders(server, "host2"))
        self.assertEqual([], self.domain(server, "host2").xpath("cpu/numa"))
        document = self.told_by_service(server)
        self.assertEqual([None] * 4, [device["address"] for device in document["devices"]])
        self.assertIsNone(document["nccl_topology"])

        self._resize_server(server, self.flavor(gpus="= 3", hypervisor="KVM"))
        self.confirm(server, source="host2")
        self.assertEqual(3, len(self.rendered(server)))
        self.assertEqual({"0", "1"}, set(self.expanders(server)))
        self.assertEqual(["0", "1"], self.domain(server).xpath("cpu/numa/cell/@id"))

        self.force_down("host1")
        self._evacuate_server(server, expected_host="host2")
        self.assertEqual(3, len(self.rendered(server, "host2")))
        self.assertEqual([], self.expanders(server, "host2"))

    # What the guest is told

    def _serve_vendordata(self) -> None:
        """What Nova asks for at the target is answered by the application, behind keystone; what is
        written to a config drive is read before it becomes an image."""
        self.flags(
            vendordata_providers=["StaticJSON", "DynamicJSON"],
            vendordata_dynamic_targets=["gpu@http://controller:8774/gpu"],
            group="api",
        )
        self.flags(force_config_drive=True)
        self.flags(service_metadata_proxy=True, group="neutron")
        self.flags(metadata_proxy_shared_secret="secret", group="neutron")
        for name, substitute in (
            ("nova.api.metadata.vendordata_dynamic._load_ks_session", lambda conf: _Session()),
            ("nova.virt.libvirt.driver.LibvirtDriver._create_configdrive", self._read_drive),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, substitute))

    def _read_drive(
        self, driver: object, context: object, instance: Any, info: Any, rescue: bool = False
    ) -> None:
        """In the place of Nova's own, which makes a file system of it"""
        if configdrive.required_by(instance):
            instance_metadata = metadata.InstanceMetadata(instance, network_info=info.network_info)
            drive = dict(instance_metadata.metadata_for_config_drive())
            self.drives.append(json.loads(drive[_VENDOR_DATA])["gpu"])

    def told_by_service(self, server: Server) -> Any:
        """As the guest asks, through Neutron's agent"""
        secret = CONF.neutron.metadata_proxy_shared_secret.encode()
        signature = hmac.new(secret, server["id"].encode(), hashlib.sha256)
        request = webob.Request.blank(f"/{_VENDOR_DATA}")
        request.headers["X-Instance-ID"] = server["id"]
        request.headers["X-Instance-ID-Signature"] = signature.hexdigest()
        request.headers["X-Tenant-ID"] = self._show_server(server)["tenant_id"]
        request.headers["X-Forwarded-For"] = "192.0.2.1"
        answer = request.get_response(handler.MetadataRequestHandler())
        self.assertEqual(200, answer.status_int, answer.text)
        return answer.json_body["gpu"]


class _Session:
    """Keystone's, of Nova's own user"""

    def request(self, url: str, method: str, **kwargs: Any) -> webob.Response:
        request = webob.Request.blank(url, method=method, headers=kwargs["headers"])
        request.body = kwargs["data"].encode()
        request.headers.update({"X-Identity-Status": "Confirmed", "X-Roles": "service"})
        return request.get_response(vendordata.factory({}))
