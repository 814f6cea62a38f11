# SPDX-License-Identifier: Apache-2.0
"""The kinds of clouds: two hosts each, which give GPUs in one of the ways there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from unittest import mock

from nova import context as nova_context
from nova import objects
from nova.tests.functional.api import client
from oslo_limit import fixture as limit_fixture

from tests.functional import base, divided, kvm, live, mig, pinned, profiled

# The limit of a resource class that is not limited
MANY = 10**6


class Cloud(live.Moving):
    """What all kinds have in common, before a class of clouds.

    ``CLASS``: the resource class of its GPUs. ``BAD``: the properties of an image that no guest of
    its hosts starts with.
    """

    # As in a cloud: what a host raises does not reach the API.
    CAST_AS_CALL = False
    HOSTS: tuple[str, ...] = ("host1", "host2")
    CLASS: ClassVar[str] = "PGPU"
    BAD: ClassVar[Mapping[str, str]] = {"hw_video_ram": "4096"}

    def setUp(self: Any) -> None:
        super().setUp()
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.flags(shelved_offload_time=-1)
        self.flags(long_rpc_timeout=30)  # of a call to a host that is dead
        classes = (
            "servers",
            *(f"class:{name}" for name in ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")),
        )
        unlimited = dict.fromkeys((*classes, "class:PGPU", "class:VGPU"), MANY)
        self.project = self.api.project_id
        self.limits = self.useFixture(
            limit_fixture.LimitFixture(unlimited, {self.project: dict[str, int]()})
        )
        self.notifier.reset()

    def instance(self: Any, server: Mapping[str, Any]) -> objects.Instance:
        """Of its cell; without one it would be sought in the cell that was read last."""
        mapping = objects.InstanceMapping.get_by_instance_uuid(self.context, server["id"])
        with (
            nova_context.target_cell(self.context, mapping.cell_mapping) as cell,
            mock.patch.object(self, "context", cell),
        ):
            return super().instance(server)  # type: ignore[misc]

    def words(self, count: int) -> dict[str, str]:
        """Return a flavor's properties for *count* GPUs in nova-gpu's own words."""
        return {"gpus": f"= {count}"} if count else {}

    def counted(self, count: int) -> dict[str, str]:
        """Return a flavor's properties for *count* GPUs that Nova's API counts as well."""
        return self.words(count) | {f"resources:{self.CLASS}": str(count)}

    def other_project(self: Any) -> client.TestOpenStackClient:
        """Return the API as a user of another project calls it, who may choose the host."""
        api = client.TestOpenStackClient(
            "other", self.api.base_url, project_id="other", roles=["reader", "member", "admin"]
        )
        api.microversion = self.microversion
        return api


class LXC(Cloud, base.GPUServersTestBase):
    BAD = {"hw_disk_bus": "scsi"}  # noqa: RUF012


class Shared(Cloud, pinned.Pinned):
    """Two thirds of the processors are for guests with pinned ones."""

    CORES = 3
    DEDICATED, SHARED = "0-3,6-9", "4-5,10-11"


class KVM(Shared, kvm.KVMServersTestBase):
    pass


class Mediated(Shared, divided.DividedServersTestBase):
    CLASS = "VGPU"

    def words(self, count: int) -> dict[str, str]:
        return {"vgpus": f"= {count}", "vgpu_type": "s== nvidia-65"} if count else {}


class Functions(Shared, profiled.ProfiledServersTestBase):
    CLASS = "VGPU"

    def words(self, count: int) -> dict[str, str]:
        return {"vgpus": f"= {count}", "vgpu_type": "s== nvidia-1155"} if count else {}


class MIG(Cloud, mig.MIGServersTestBase):
    CLASS = "VGPU"
    BAD = LXC.BAD

    def setUp(self) -> None:
        super().setUp()
        self.periods()  # MIG instances are clean, and offered, from the first one on

    def words(self, count: int) -> dict[str, str]:
        return {"vgpus": f"= {count}", "vgpu_type": f"s== {mig.SMALL}"} if count else {}


KINDS: Mapping[str, type[Any]] = {
    "lxc": LXC,
    "kvm": KVM,
    "mediated": Mediated,
    "functions": Functions,
    "mig": MIG,
}
