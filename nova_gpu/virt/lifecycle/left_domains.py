# SPDX-License-Identifier: Apache-2.0
"""GPUs in the definitions of guests that do not run.

After a resize or cold migration that failed Nova leaves the guest's domain at the source, shut off,
and counts its GPUs for no instance. Nova never removes that domain, and renders it anew before it
starts a guest from it. So its GPUs come out of the definition, and all else stays for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

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
    """Define the instance's domain, where there is one, without these *devices*.

    :raises DeviceUnavailable: where the guest runs
    :raises DomainsUnreadable: where its domain is nothing that libvirt writes
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

    An instance with a task or with a migration from or to this host that has not ended may come
    back: its domain stays as it is, and so do domains that run or that Nova does not know.
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
            continue  # another's domain, or gone since
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
                *(_list(devices), instance.host),
                instance=instance,
            )


def _may_come_back(
    context: nova_context.RequestContext, instance: objects.Instance, nodename: str
) -> bool:
    if instance.host in (None, CONF.host) or instance.task_state is not None:
        return True
    moves = objects.MigrationList.get_in_progress_and_error(context, CONF.host, nodename)
    return any(m.instance_uuid == instance.uuid and m.status != "error" for m in moves)


def _list(devices: Iterable[Device]) -> str:
    return ", ".join(sorted(map(str, devices)))
