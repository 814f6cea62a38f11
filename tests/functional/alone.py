# SPDX-License-Identifier: Apache-2.0
"""Compute hosts without a cloud, for what is one host's own: for a fifth of the processor's time.

Nova's compute manager, resource tracker, report client and libvirt driver are real, and so are the
request filters that ask Placement for an instance's GPUs. There are no API, scheduler, messages and
databases: what the manager asks of the conductor and of Placement is answered from memory, and what
the API and the scheduler do for a host is a few lines here. What a user reads, who of several hosts
is chosen and what moves between them is tried with a whole cloud.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import fixtures
import testtools
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects, utils
from nova.api.openstack import common
from nova.compute import manager as compute_manager
from nova.compute import task_states, vm_states
from nova.network import model as network_model
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import fake_flavor
from oslo_utils import uuidutils

from tests.fixtures import conductor, placement
from tests.functional import base
from tests.functional.base import Server

_COMPUTE = "nova-compute"
_PLACEMENT = "nova.tests.functional.fixtures.PlacementFixture"


class Service:
    """nova-compute as its ``Service`` starts and stops it, but that nobody sends it messages"""

    def __init__(self, host: str) -> None:
        self.host = host
        self.manager = compute_manager.ComputeManager(host=host)

    @property
    def driver(self) -> Any:
        return self.manager.driver

    def start(self) -> None:
        context = nova_context.get_admin_context()
        found = objects.Service.get_by_host_and_binary(context, self.host, _COMPUTE)
        self.manager.init_host(found)
        if found is None:
            found = objects.Service(
                context, host=self.host, binary=_COMPUTE, topic="compute", report_count=0
            )
            found.create()
        self.service_ref = found
        self.manager.pre_start_hook(found)
        self.manager.post_start_hook()

    def stop(self) -> None:
        """Without the end of the threads that all hosts of a test share"""
        self.manager.instance_events.cancel_all_events()
        self.driver.register_event_listener(None)
        self.driver.cleanup_host(host=self.host)


class Alone:
    """Put before a class of clouds, has its tests run on the hosts alone.

    Each test sets up its own: that costs less than a fork of a process with a cloud.
    """

    run_tests_with: ClassVar[type[testtools.RunTest]] = testtools.RunTest
    USES_DB = False
    CAST_AS_CALL = False

    def setUp(self: Any) -> None:
        self._flavors: list[dict[str, str]] = []
        # Which the class of clouds makes
        self.useFixture(fixtures.MonkeyPatch(_PLACEMENT, placement.Placement))
        super().setUp()  # type: ignore[misc]

    def _setup_services(self: Any) -> None:
        self.conductor = self.useFixture(conductor.Conductor())
        self.useFixture(nova_fixtures.AllServicesCurrent())
        self.useFixture(nova_fixtures.SpawnIsSynchronousFixture())
        self._setup_compute_service()
        self.addCleanup(self._stop_computes)

    def start_service(self: Any, name: str, host: str, **kwargs: Any) -> Service:
        self.flags(host=host)
        service = Service(host)
        service.start()
        return service

    def restart_compute_service(self: Any, name: str) -> None:
        service = self.computes.pop(name)
        del self.compute_rp_uuids[name]
        service.stop()
        self.start_compute(name, connection=service.driver._get_connection())

    # Instances

    def flavor(self: Any, **extra_specs: str) -> str:
        self._flavors.append(extra_specs)
        return str(len(self._flavors) - 1)

    def boot(
        self: Any,
        flavor: str,
        expected_state: str | None = "ACTIVE",
        *,
        host: str | None = None,
        image_uuid: str = base.IMAGE,
    ) -> Server:
        image = self.glance.show(None, image_uuid)
        request = _request()
        instance = self._new_instance(request, self._flavors[int(flavor)], image)
        spec = self._spec(request, instance, image)
        if (where := self._claim(request, spec, host)) is None:
            instance.vm_state, instance.task_state = vm_states.ERROR, None
            instance.save()
        else:
            self._build(request, instance, image, spec, where)
        server = {"id": instance.uuid}
        if expected_state is not None:
            self._expect_status(server, expected_state)
        return server

    def _build(
        self: Any, request: Any, instance: objects.Instance, image: Any, spec: Any, host: str
    ) -> None:
        no_network = objects.NetworkRequest(network_id="none")
        objects.InstanceAction.action_start(request, instance.uuid, "create")
        with self.on(host):
            self.computes[host].manager.build_and_run_instance(
                request,
                instance,
                image,
                spec,
                filter_properties={},
                accel_uuids=[],
                requested_networks=objects.NetworkRequestList(objects=[no_network]),
                block_device_mapping=objects.BlockDeviceMappingList(objects=[]),
                node=host,
            )

    def _new_instance(
        self: Any, request: Any, extra_specs: dict[str, str], image: Any
    ) -> objects.Instance:
        flavor = fake_flavor.fake_flavor_obj(
            request,
            memory_mb=128,
            root_gb=1,
            extra_specs=extra_specs,
            expected_attrs=["extra_specs", "projects"],
        )
        uuid = uuidutils.generate_uuid()
        instance = objects.Instance(
            request,
            uuid=uuid,
            user_id=request.user_id,
            project_id=request.project_id,
            flavor=flavor,
            instance_type_id=flavor.id,
            memory_mb=flavor.memory_mb,
            vcpus=flavor.vcpus,
            root_gb=flavor.root_gb,
            ephemeral_gb=flavor.ephemeral_gb,
            image_ref=image["id"],
            system_metadata=utils.get_system_metadata_from_image(image, flavor),
            display_name=f"instance-{uuid}",
            hostname=f"instance-{uuid}",
            reservation_id="r-1",
            vm_state=vm_states.BUILDING,
            task_state=task_states.SCHEDULING,
            power_state=0,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            security_groups=objects.SecurityGroupList(objects=[]),
            info_cache=objects.InstanceInfoCache(
                instance_uuid=uuid, network_info=network_model.NetworkInfo()
            ),
            config_drive="",
            locked=False,
            hidden=False,
        )
        instance.create()
        return instance

    def _spec(
        self: Any, request: Any, instance: objects.Instance, image: Any
    ) -> objects.RequestSpec:
        return objects.RequestSpec.from_components(
            request,
            instance.uuid,
            objects.ImageMeta.from_dict(image),
            instance.flavor,
            None,
            instance.pci_requests,
            {},
            None,
            None,
            project_id=instance.project_id,
        )

    def _claim(self: Any, request: Any, spec: objects.RequestSpec, host: str | None) -> str | None:
        """The host in which Placement has room for it, as the scheduler asks for it; claimed."""
        try:
            request_filter.process_reqspec(request, spec)
        except nova_exception.RequestFilterFailed as error:
            self.conductor.faults[spec.instance_uuid] = str(error)
            return None
        client = next(iter(self.computes.values())).manager.reportclient
        wanted = scheduler_utils.resources_from_request_spec(request, spec, None)
        found, _, version = client.get_allocation_candidates(request, wanted)
        names = {uuid: name for name, uuid in self.compute_rp_uuids.items()}
        for each in found or ():
            (where,) = {names[rp] for rp in each["allocations"] if rp in names}
            if host in (None, where):
                client.claim_resources(
                    request,
                    spec.instance_uuid,
                    each,
                    spec.project_id,
                    request.user_id,
                    allocation_request_version=version,
                )
                return where
        return None

    def _on_its_host(self: Any, server: Server, action: str, *arguments: Any) -> None:
        """The manager does *action*, of whose events the conductor knows by its request."""
        request = _request()
        instance = self.instance(server)
        objects.InstanceAction.action_start(request, instance.uuid, action)
        with self.on(instance.host):
            getattr(self.computes[instance.host].manager, action)(request, instance, *arguments)

    def _begin(self: Any, server: Server, task_state: str) -> None:
        instance = self.instance(server)
        instance.task_state = task_state
        instance.save()

    def _delete_server(self: Any, server: Server) -> None:
        instance = self.instance(server)
        if instance.host is None:
            instance.destroy()
            return
        self._begin(server, task_states.DELETING)
        self._on_its_host(server, "terminate_instance", objects.BlockDeviceMappingList(objects=[]))

    def _stop_server(self: Any, server: Server) -> None:
        self._begin(server, task_states.POWERING_OFF)
        self._on_its_host(server, "stop_instance", True)
        self._expect_status(server, "SHUTOFF")

    def _start_server(self: Any, server: Server) -> None:
        self._begin(server, task_states.POWERING_ON)
        self._on_its_host(server, "start_instance")
        self._expect_status(server, "ACTIVE")

    def _reboot_server(self: Any, server: Server, hard: bool = False) -> None:
        self._begin(server, task_states.REBOOTING_HARD if hard else task_states.REBOOTING)
        self._on_its_host(server, "reboot_instance", None, "HARD" if hard else "SOFT")
        self._expect_status(server, "ACTIVE")

    # What is said of them

    def _show_server(self: Any, server: Server) -> dict[str, Any]:
        instance = self.instance(server)
        return {
            "id": instance.uuid,
            "status": common.status_from_state(instance.vm_state, instance.task_state),
            "fault": {"message": self.conductor.faults.get(instance.uuid, "")},
        }

    def _expect_status(self: Any, server: Server, status: str) -> None:
        shown = self._show_server(server)
        self.assertEqual(status, shown["status"], shown["fault"])

    def refused(self: Any, action: Mapping[str, object], server: Server | None = None) -> list[str]:
        """What the events of the action say, which the API shows"""
        server = server or self.server
        (name,) = action
        act = {"os-start": self._start_server, "suspend": self._suspend, "rescue": self._rescue}
        self.conductor.failures.pop(server["id"], None)
        with contextlib.suppress(Exception):
            act[name](server)
        self.assertIn(server["id"], self.conductor.failures, "it was not refused")
        return list(self.conductor.failures[server["id"]])

    def _suspend(self: Any, server: Server) -> None:
        self._begin(server, task_states.SUSPENDING)
        self._on_its_host(server, "suspend_instance")

    def _rescue(self: Any, server: Server) -> None:
        self._begin(server, task_states.RESCUING)
        self._on_its_host(server, "rescue_instance", None, None, True)

    # The end

    def _wait_for_assert(self: Any, assert_func: Callable[[], Any], *args: Any) -> Any:
        """A look costs nothing here."""
        with contextlib.suppress(AssertionError):
            return assert_func()
        return super()._wait_for_assert(assert_func, *args)  # type: ignore[misc]

    def delete_everything(self: Any) -> None:
        for instance in objects.InstanceList.get_all(self.context):
            self._delete_server({"id": instance.uuid})


def _request() -> nova_context.RequestContext:
    """Of a user, with an id of its own"""
    return nova_context.RequestContext("fake", "fake", is_admin=True)
