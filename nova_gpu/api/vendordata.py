# SPDX-License-Identifier: Apache-2.0
"""Nova's dynamic vendordata about GPUs, by which a guest learns about its own GPUs.

Nova requests it, and shows it in the metadata service and on the config drive, if
``[api]vendordata_dynamic_targets = gpu@URL`` is set. It is an application of paste.deploy for
nova-api, behind the filter ``authtoken``::

    [pipeline:gpu_vendordata]
    pipeline = http_proxy_to_wsgi authtoken gpu_vendordata_app

    [app:gpu_vendordata_app]
    paste.app_factory = nova_gpu.api.vendordata:factory
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob
import webob.dec
import webob.exc
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import extensions, names
from nova_gpu.core.guest import devices

# The roles that may request the data of any instance: Nova's own user has them
_ROLES = frozenset({"admin", "service"})
_ADDITIONS = extensions.load("nova_gpu.vendordata")


def factory(global_conf: Mapping[str, str], **local_conf: str) -> Any:
    """Return the application; paste.deploy calls this."""
    return application


@webob.dec.wsgify  # type: ignore[untyped-decorator]
def application(request: webob.Request) -> webob.Response:
    """Answer Nova's POST with the vendordata of the instance that it names (:func:`of_instance`).

    The answer to an invalid request, or to one without the role admin or service, is an HTTP error.
    """
    if request.headers.get("X-Identity-Status") != "Confirmed":
        raise webob.exc.HTTPUnauthorized("Keystone has not authenticated the request")
    roles = {role.strip().lower() for role in request.headers.get("X-Roles", "").split(",")}
    if not roles & _ROLES:
        raise webob.exc.HTTPForbidden("the request needs the role admin or service")
    try:
        uuid = str(request.json_body["instance-id"])
    except (ValueError, KeyError, TypeError):
        raise webob.exc.HTTPBadRequest("the request body has no instance-id") from None
    try:
        return webob.Response(json_body=of_instance(_instance(uuid)))
    except nova_exception.NotFound:
        raise webob.exc.HTTPNotFound(f"there is no instance {uuid}") from None


def of_instance(instance: objects.Instance) -> dict[str, Any]:
    """Return the instance's GPUs, NCCL's topology file, and what extensions add.

    The first two are from its ``system_metadata``, which may be out of date: the instance may have
    given its GPUs back, or moved to a host without GPUs. Only ``resources`` show whether it has
    GPUs now. An instance without any gets an empty mapping.
    """
    has_gpus = any(
        resource.resource_class in names.RESOURCE_CLASSES for resource in instance.resources or ()
    )
    guest_devices = devices.of_metadata(instance.system_metadata) if has_gpus else []
    topology = devices.nccl_topology(guest_devices)
    data = {"devices": guest_devices, "nccl_topology": topology} if guest_devices else {}
    for addition in _ADDITIONS:
        data |= addition(instance)
    return data


def _instance(uuid: str) -> objects.Instance:
    """Return the instance from Nova's database, or raise nova.exception.NotFound."""
    context = nova_context.get_admin_context()
    mapping = objects.InstanceMapping.get_by_instance_uuid(context, uuid)
    if mapping.cell_mapping is None:
        raise nova_exception.InstanceNotFound(instance_id=uuid)
    with nova_context.target_cell(context, mapping.cell_mapping) as in_cell:
        wanted = ["system_metadata", "resources"]
        return objects.Instance.get_by_uuid(in_cell, uuid, expected_attrs=wanted)
