# SPDX-License-Identifier: Apache-2.0
"""Whose function changes the owners of a container's files"""

from __future__ import annotations

import fixtures
from nova.virt.libvirt import utils as libvirt_utils
from oslotest import base

from nova_gpu.virt.delivery import container_root

INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class ContainerRootTest(base.BaseTestCase):
    def test_by_release(self) -> None:
        novas = libvirt_utils.chown_for_id_maps
        for release, used in ((33, container_root.change_owners), (34, novas)):
            self.useFixture(fixtures.MockPatchObject(libvirt_utils, "chown_for_id_maps", novas))
            name = "nova_gpu.virt.signatures.nova_release"
            with fixtures.MockPatch(name, return_value=release):
                container_root.replace_change_of_owners()
            self.assertIs(used, libvirt_utils.chown_for_id_maps)

    def test_by_the_instance(self) -> None:
        shift = self.useFixture(fixtures.MockPatch("nova_gpu.privsep.root_disk.shift")).mock
        container_root.change_owners(f"/var/lib/nova/instances/{INSTANCE}/rootfs", [])
        shift.assert_called_once_with(INSTANCE)
