# SPDX-License-Identifier: Apache-2.0
"""The delivery of whole cards and MIG instances to containers: nodes and files of the driver.

The operator makes MIG instances, or nova-compute at its start. They persist, and are cleaned
between two guests.
"""

from __future__ import annotations

import logging as python_logging
import pathlib
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary, exception, operation_refusals
from nova_gpu.core.device import Device
from nova_gpu.core.guest.tree import GuestPlace
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Parent, Slot, VGPUKind
from nova_gpu.host import nodes
from nova_gpu.host.container import guest_processes, libraries
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml, proc
from nova_gpu.host.pci import kfd, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import service
from nova_gpu.virt.delivery.delivery import Delivery, Grant, Operation, described
from nova_gpu.virt.delivery.host_hooks import HostHooks
from nova_gpu.virt.usage import domains

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig
    from nova.virt.libvirt import host as libvirt_host

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.core.guest.devices import GuestDevice

LOG = logging.getLogger(__name__)


_OTHERS = stat.S_IROTH | stat.S_IWOTH
_SET_MODE = (
    "Set the module option NVreg_DeviceFileMode=0666 of nvidia, or NVreg_ModifyDeviceFiles=0 and "
    "the mode by udev."
)

_UNSUPPORTED: Mapping[Operation, str] = MappingProxyType(
    {
        Operation.SUSPEND: operation_refusals.SUSPEND_CONTAINER,
        Operation.SNAPSHOT: operation_refusals.SUSPEND_CONTAINER,
        Operation.RESCUE: operation_refusals.RESCUE_CONTAINER,
    }
)


class ContainerNodes(Delivery):
    """The delivery of whole cards and MIG instances on an LXC host.

    Processes of the host and of guests may have a card open at the same time. The whole cards and
    the MIG instances of a container are rendered together, because they share nodes and files.

    :param serves: whether this process gives cards to guests, as nova-compute does and the commands
        do not
    """

    mode = DeliveryMode.LXC
    shares_driver = True
    # A defined domain names device nodes, and a node of that name may be another card's by now.
    needs_hard_reboot = True
    kind = VGPUKind.INSTANCE
    part_name = "a MIG instance"

    def __init__(
        self, roots: Roots, reason_kept: Callable[[GPU], str | None], *, serves: bool
    ) -> None:
        self._roots = roots
        self._reason_kept = reason_kept
        self.host_hooks = ContainerHostHooks(roots)
        self._library_root = _library_root()
        if serves:
            self.share = service.threads.DaemonShare()

    # Queries

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        if reason := self._reason_kept(card):
            return reason
        unprivileged = NOVAS.libvirt.uid_maps and NOVAS.libvirt.gid_maps
        if not unprivileged and not CONF.gpu.allow_privileged_containers:
            return (
                "root in a container without user id maps is root on the host; set "
                "[libvirt]uid_maps and [libvirt]gid_maps (or, where every user is trusted with "
                "the host, [gpu]allow_privileged_containers)"
            )
        if not nodes.own_nodes(card, self._roots):
            if card.driver is None:
                return "no driver has it; load the vendor's driver"
            return (
                f"it is bound to the driver {card.driver}, which gives it no device node; bind it "
                "to the vendor's driver"
            )
        if reason := kfd.obstacle(card.address, self._roots):
            return reason
        # Each MIG instance is judged alone.
        return None if functions else self._without_files(card, card)

    def part_obstacle(self, card: GPU, slot: Slot) -> str | None:
        return self._without_files(card, slot)

    def _without_files(self, card: GPU, grant: Grant) -> str | None:
        # What reads CDI files takes a while to import.
        if not any(sysfs.names(str(folder)) for folder in self._roots.cdi_spec_dirs):
            return None
        return service.contents.obstacle(grant, self._roots, card.driver)

    def unsupported(self, operation: Operation, *, has_gpus: bool = True) -> str | None:
        if has_gpus and operation is Operation.LIVE_MIGRATION:
            return operation_refusals.LIVE_CONTAINER
        return _UNSUPPORTED.get(operation)

    # Actions

    def prepare(self, grant: Grant, instance_uuid: str) -> None:
        """Check that a MIG instance exists; do nothing for a whole card.

        :raises DeviceUnavailable: if the MIG instance does not exist
        """
        if isinstance(grant, Slot) and not nodes.instance_nodes(grant, self._roots):
            raise exception.DeviceUnavailable(
                str(grant),
                vgpu.LOST,
                "make the card's layout what it was (nvidia-smi mig), or move the instance",
            )

    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> list[GuestDevice]:
        """Add the nodes and driver files of the devices to the container's libvirt configuration.

        Open the nodes to the container's users. The container sees the host's sysfs, so PCI
        addresses are the same on both sides.
        """
        service.domain_xml.isolate(guest)
        if not grants:
            return []
        cards = [grant for grant in grants if isinstance(grant, GPU)]
        slots = [grant for grant in grants if isinstance(grant, Slot)]
        mounts = service.contents.contents(
            cards,
            self._roots,
            self._library_root,
            slots=slots,
            more=(nodes.MODESET,) if CONF.gpu.nvidia_modeset else (),
        )
        devices: tuple[Device, ...] = (*(card.address for card in cards), *slots)
        if self.host_hooks.rights:
            self.host_hooks.rights.open(instance, devices, mounts.nodes)
        service.domain_xml.add_nodes(guest, devices, mounts)
        places = {c.address: GuestPlace(c.address, c.numa_node, c.pcie_switch) for c in cards}
        return described(cards, places, self._roots)

    def clean(self, grant: Grant) -> bool:
        """End the processes that ended guests left on the device.

        Return false for a card, which is not reset, because other processes may use it. For a MIG
        instance return whether it exists: one that was removed needs no cleaning.

        :raises NotCleanedYet: if one of the processes does not end, or a guest still computes there
        """
        if isinstance(grant, Slot) and not gpu_instances.is_slot_there(grant, self._roots):
            return False
        end_processes(str(grant.address if isinstance(grant, GPU) else grant), self._roots)
        _refuse_in_use(grant, self._roots)
        return isinstance(grant, Slot)

    def release(self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]) -> None:
        clean(slot)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether the MIG instance at *slot* exists, by the driver's files in /proc."""
        return gpu_instances.is_slot_there(slot, self._roots)


def divide(card: str, profile: str) -> None:
    """Divide the card into MIG instances of one profile."""
    if made := nova_gpu.privsep.vgpu.make_mig_instances(card, profile):
        LOG.info("Divided GPU %s into %d MIG instances %s", card, made, profile)


def end_processes(device: str, roots: Roots) -> None:
    """End the processes that an ended guest left on a card or a MIG instance.

    :raises NotCleanedYet: if one of them does not end
    """
    if guest_processes.may_be_left(roots, guest_processes.ranges(NOVAS.libvirt.uid_maps)):
        for process in nova_gpu.privsep.cleaning.end_processes(device):
            LOG.warning(
                "Killed %s, which still had GPU %s open after its guest had ended", process, device
            )


def _refuse_in_use(device: GPU | Slot, roots: Roots) -> None:
    """Refuse a device on which a guest computes, although no process shows it open.

    :raises NotCleanedYet: if one does
    """
    if not CONF.gpu.nvml or (isinstance(device, GPU) and device.driver != nvml.DRIVER):
        return
    uids = guest_processes.ranges(NOVAS.libvirt.uid_maps)
    if left := guest_processes.computing(device, roots, uids, CONF.gpu.nvml_timeout):
        where = str(device.address if isinstance(device, GPU) else device)
        reason = f"it is still in use: {', '.join(map(str, left))}"
        raise exception.NotCleanedYet(where, reason, left[0].remedy)


def _library_root() -> pathlib.Path:
    return pathlib.Path(NOVAS.state_path, "gpu-libraries")


class ContainerHostHooks(HostHooks):
    """The hooks of an LXC host, which keep device nodes and driver libraries fit for containers."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self.rights: NodeRights | None = None

    def began(self, cards: Collection[GPU], host: libvirt_host.Host) -> None:
        """Make missing device nodes of *cards*, and restore the modes of those without a guest.

        Also remove the copied libraries of former driver versions that no guest uses.
        """
        nodes.make_nodes(cards, self._roots)
        mode = proc.device_file_mode(self._roots)
        if mode is not None and mode & _OTHERS != _OTHERS:
            LOG.warning(
                "NVIDIA's driver sets its device nodes to mode %04o whenever a program initialises "
                "it, and running guests cannot open them until the next period. %s",
                mode,
                _SET_MODE,
            )
        self.rights = rights = NodeRights(host, self._roots)
        rights.begin()
        try:
            removed = libraries.prune(_library_root(), domains.mount_sources(host))
        except exception.DomainsUnreadable as error:
            LOG.warning("%s. No library of a guest is removed.", error)
        except OSError as error:
            LOG.warning("Cannot remove the libraries that no guest uses: %s", error)
        else:
            for folder in removed:
                LOG.info("Removed the libraries in %s, which no guest uses any more", folder)

    def started(self, instance_uuid: str) -> None:
        if self.rights:
            self.rights.started(instance_uuid)

    def ending(self, host: libvirt_host.Host, instance: objects.Instance) -> None:
        service.container_domain.wait_for_end(host, instance)

    def domain_gone(self) -> None:
        if self.rights:
            self.rights.close()
            self.rights.open_again()


class NodeRights:
    """The modes of device nodes: every user may open a node while a guest has it.

    For the host, the users of a guest with mapped user ids are "others". The privileged process
    records the former mode at the node itself, so that the record outlives the service and goes
    away with the node.
    """

    def __init__(self, host: libvirt_host.Host, roots: Roots) -> None:
        self._privileged = nova_gpu.privsep.nodes
        self._host = host
        self._roots = roots
        # Never held during a call of libvirt, so that no start waits for another guest's domain.
        self._lock = threading.Lock()
        # Nodes whose former mode is recorded. NVIDIA's nodes are open to every user by default, so
        # this is mostly empty.
        self._opened: set[str] = set()
        self._warned: set[str] = set()
        # By instance, the nodes of guests that have no domain yet
        self._starting: dict[str, Collection[str]] = {}
        self._starts = 0

    def begin(self) -> None:
        """Restore the modes of nodes that an earlier service opened and no guest has now."""
        try:
            with boundary.crossed():
                opened = self._privileged.opened_to_guests()
        except boundary.Failure as error:
            LOG.warning("Cannot list the device nodes that earlier guests opened: %s", error)
            return
        with self._lock:
            self._opened.update(opened)
        self.close()

    def open(
        self, instance: objects.Instance, devices: Iterable[Device], paths: Collection[str]
    ) -> None:
        """Let every user open the nodes in *paths*, which a guest with *devices* is about to get.

        They stay open until :meth:`started` is called, and then as long as a domain has them.
        """
        with self._lock:
            self._starts += 1
            self._starting[instance.uuid] = paths
            # Read first: the privileged process need not start for nodes that are open already.
            closed = [node for node in paths if self._is_closed(node)]
            for device in devices if closed else ():
                for node in self._privileged.open_to_guests(str(device), closed):
                    self._opened.add(node)
                    LOG.info(
                        "Set the mode of device node %s so that every user may open it, for the "
                        "guest",
                        node,
                        instance=instance,
                    )

    def started(self, instance_uuid: str) -> None:
        """Note that the guest's start has ended: only its domain keeps its nodes open now."""
        with self._lock:
            self._starting.pop(instance_uuid, None)

    def close(self) -> None:
        """Restore the former modes of the nodes that no domain has, running or defined."""
        with self._lock:
            if not self._opened:
                return
            starts, starting = self._starts, dict(self._starting)
        try:
            in_use = domains.device_nodes(self._host).union(*starting.values())
        except exception.DomainsUnreadable as error:
            LOG.warning("%s. Device nodes of ended guests stay open to every user.", error)
            return
        with self._lock:
            if self._starts != starts:
                return  # a guest began to start after libvirt was read; the next period decides
            try:
                with boundary.crossed():
                    closed = self._privileged.close_to_guests(sorted(self._opened - in_use))
            except boundary.Failure as error:
                LOG.warning(
                    "Failed to restore the modes of device nodes, which stay open to every "
                    "user: %s",
                    error,
                )
                return
            for node in closed:
                LOG.info("Restored the mode of device node %s, which no guest has any more", node)
            self._opened &= in_use

    def open_again(self) -> None:
        """Let every user open the nodes of running guests again, if another program changed a mode.

        The first time for a node is logged as a warning, later ones at info: a vendor's tool closes
        a node every time that it runs.
        """
        try:
            running = domains.running_nodes(self._host)
        except exception.DomainsUnreadable as error:
            LOG.warning("%s. Guests may be unable to open their device nodes.", error)
            return
        with self._lock:
            for devices, paths in running:
                closed = [node for node in sorted(paths) if self._is_closed(node)]
                for device in devices if closed else ():
                    self._open_again(device, closed)

    def _open_again(self, device: Device, closed: list[str]) -> None:
        try:
            with boundary.crossed():
                opened = self._privileged.open_to_guests(str(device), closed)
        except boundary.Failure as error:
            LOG.error(
                "Failed to let guests open their device nodes %s again: %s",
                ", ".join(closed),
                error,
            )
            return
        self._opened.update(opened)
        for node in opened:
            level = python_logging.INFO if node in self._warned else python_logging.WARNING
            self._warned.add(node)
            LOG.log(
                level,
                "Device node %s of running guests was closed to them by another program, and is "
                "open again. %s",
                node,
                _SET_MODE if node.startswith("/dev/nvidia") else "",
            )

    def _is_closed(self, node: str) -> bool:
        try:
            mode = nodes.on_host(node, self._roots).stat().st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) and nodes.open_mode(node, mode) != mode
