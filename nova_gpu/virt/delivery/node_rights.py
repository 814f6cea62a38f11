# SPDX-License-Identifier: Apache-2.0
"""The rights of containers' device nodes: open to every user for as long as a guest has them.

A guest with user ids of its own is "others" to the host's nodes. What the rights were is noted by
the privileged process at the node itself, so that it outlives a service and goes with the node.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Collection, Iterable

from nova import objects
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

import nova_gpu.privsep.nodes
from nova_gpu.core import exception
from nova_gpu.core.device import Device
from nova_gpu.host.container import nodes
from nova_gpu.host.roots import Roots
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)


class NodeRights:
    def __init__(self, host: libvirt_host.Host, roots: Roots) -> None:
        self._host = host
        self._roots = roots
        # Never held while libvirt is asked, so that no start waits for another's domain.
        self._lock = threading.Lock()
        # Those whose former rights are noted. NVIDIA's nodes are everybody's: mostly there is none.
        self._opened: set[str] = set()
        # By instance, of guests that have no domain yet
        self._starting: dict[str, Collection[str]] = {}
        self._starts = 0

    def begin(self) -> None:
        """At service start: closes what an earlier one has opened and no guest has any more."""
        try:
            opened = nova_gpu.privsep.nodes.opened_to_guests()
        except Exception as error:  # whatever privsep itself may raise, too
            LOG.warning("Which device nodes guests have had is not known: %s", error)
            return
        with self._lock:
            self._opened.update(opened)
        self.close()

    def open(
        self, instance: objects.Instance, devices: Iterable[Device], given: Collection[str]
    ) -> None:
        """Lets every user open the nodes in *given*, which a guest with *devices* is about to get,
        until :meth:`started` and then as long as its domain has them."""
        with self._lock:
            self._starts += 1
            self._starting[instance.uuid] = given
            # Asked first, because the privileged process need not be woken for NVIDIA's nodes.
            closed = [node for node in given if self._is_closed(node)]
            for device in devices if closed else ():
                for node in nova_gpu.privsep.nodes.open_to_guests(str(device), closed):
                    self._opened.add(node)
                    LOG.info(
                        "Set the mode of device node %s so that every user may open it, for the "
                        "guest",
                        node,
                        instance=instance,
                    )

    def started(self, instance_uuid: str) -> None:
        """The instance's guest has its domain, or gets none."""
        with self._lock:
            self._starting.pop(instance_uuid, None)

    def close(self) -> None:
        """Gives the nodes that no domain has, running or defined, the rights that they had."""
        with self._lock:
            if not self._opened:
                return
            starts, starting = self._starts, dict(self._starting)
        try:
            in_use = domains.device_nodes(self._host).union(*starting.values())
        except exception.DomainsUnreadable as error:
            LOG.warning("%s. Device nodes that guests had stay open to every user.", error)
            return
        with self._lock:
            if self._starts != starts:
                return  # its domain may be younger than the look: the next one tells
            try:
                closed = nova_gpu.privsep.nodes.close_to_guests(sorted(self._opened - in_use))
            except Exception as error:  # also what privsep itself may raise: a guest is removed
                LOG.warning("Device nodes that guests had stay open to every user: %s", error)
                return
            for node in closed:
                LOG.info("Device node %s has its former mode again: no guest has it", node)
            self._opened &= in_use

    def _is_closed(self, node: str) -> bool:
        try:
            mode = nodes.on_host(node, self._roots).stat().st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) and nodes.open_mode(node, mode) != mode
