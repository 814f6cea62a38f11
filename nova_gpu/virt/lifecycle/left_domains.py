# SPDX-License-Identifier: Apache-2.0
"""Removal of GPUs from the definitions of shut-off domains.

After a failed resize or cold migration, Nova leaves the guest's domain on the source host, shut
off, and no longer counts the domain's GPUs for any instance. Nova never removes the domain, and
renders it anew before it starts a guest from it. So only the GPUs are removed from the definition;
everything else stays for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import device_uuid
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.ledger import Snapshot

LOG = logging.getLogger(__name__)


def take_out(
    host: libvirt_host.Host,
    instance: objects.Instance,
    devices: Collection[Device],
    parts: domains.Parts,
) -> None:
    """Remove *devices* from the definition of the instance's domain, if it has a domain.

    :param parts: the device of each device node and PCI function that a domain may name
    :raises DeviceUnavailable: if the guest runs
    :raises DomainsUnreadable: if the domain's XML is not of libvirt's format
    """
    try:
        guest = host.get_guest(instance)
    except nova_exception.InstanceNotFound:
        return
    if guest.is_active():
        raise exception.DeviceUnavailable(
            min(map(str, devices), default=None),
            "the guest runs",
            "stop the instance",
            instance.uuid,
        )
    mdevs = {device_uuid(instance.uuid, slot) for slot in device.slots(devices)}
    xml = guest.get_xml_desc(dump_inactive=True, dump_sensitive=True)
    host.write_instance_config(domains.without(xml, devices, parts, mdevs))


def release(
    host: libvirt_host.Host,
    usage: Snapshot,
    releases: Releases,
    parts: Callable[[], domains.Parts],
) -> None:
    """Release the GPUs of shut-off domains whose instances are on another host; raise nothing.

    A domain stays as it is if it runs, if Nova has no instance of its uuid, or if its instance may
    come back: the instance has a task, or a migration from or to this host that has not ended.

    :param parts: return the last argument of :func:`take_out`
    """
    context = nova_context.get_admin_context()
    for uuid in set(usage.strangers().values()) - usage.instances():
        try:
            with boundary.crossed(nova_exception.InstanceNotFound):
                instance = objects.Instance.get_by_uuid(context, uuid)
                if usage.is_between(uuid) or _may_come_back(context, instance, host.get_hostname()):
                    continue
                if host.get_guest(instance).is_active():
                    continue
                devices = usage.domains[uuid]
                with releases.domain_goes(instance):
                    take_out(host, instance, devices, parts())
        except nova_exception.InstanceNotFound:
            continue  # another program's domain, or a deleted instance
        except boundary.Failure as error:
            LOG.warning(
                "Failed to release the GPUs listed in its shut-off domain, will retry in the next "
                "period: %s",
                error,
                instance_uuid=uuid,
            )
        else:
            LOG.warning(
                "Removed GPUs %s from the shut-off domain that a failed move left here: the "
                "instance is on %s. If the domain is not needed, remove it with virsh.",
                ", ".join(sorted(map(str, devices))),
                instance.host,
                instance=instance,
            )


def _may_come_back(
    context: nova_context.RequestContext, instance: objects.Instance, nodename: str
) -> bool:
    if instance.host in (None, CONF.host) or instance.task_state is not None:
        return True
    moves = objects.MigrationList.get_in_progress_and_error(context, CONF.host, nodename)
    return any(m.instance_uuid == instance.uuid and m.status != "error" for m in moves)
