# SPDX-License-Identifier: Apache-2.0
"""The end of a container whose processes take their time, as those of a GPU's driver may.

libvirt gives the processes of a guest 3 s (virLXCProcessStop, virCgroupKillPainfully), and twice
that long once more when the guest's controller is gone. Where one needs longer, its LXC driver
(9.0, seen) has the domain as running for good, without a process in it, and Nova's wait for the
guest's end has no end either: a delete never returns, and keeps the instance's lock.
"""

from __future__ import annotations

import logging as python_logging
import pathlib
import re
import time
from collections.abc import Iterator

import libvirt
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_PATIENCE_S = 120.0
_PAUSE_S = 0.5
# libvirt, src/lxc/lxc_process.c: an internal error that has no number of its own
_REFUSAL = "Some processes refused to die"
_PROC = pathlib.Path("/proc")


def wait(host: libvirt_host.Host, instance: objects.Instance) -> None:
    """Asks libvirt again and again to end the guest of *instance*, a container of a host with GPUs.

    What else libvirt says is left to Nova, which asks once more and judges it.

    :raises nova.exception.InstancePowerOffFailure: when processes are left after two minutes. The
        instance keeps its GPUs then, and can be stopped or deleted again.
    """
    deadline = time.monotonic() + _PATIENCE_S
    level = python_logging.INFO
    while (controller := _refused(host, instance)) is not None:
        left = f"of its guest there are still: {', '.join(processes(controller)) or 'none'}"
        if time.monotonic() > deadline:
            raise nova_exception.InstancePowerOffFailure(
                reason=f"after {_PATIENCE_S:.0f} s {left}; stop or delete it again when they have "
                f"ended, or boot the host again if they cannot"
            )
        LOG.log(level, "Waiting, since %s", left, instance=instance)
        level = python_logging.DEBUG
        time.sleep(_PAUSE_S)


def _refused(host: libvirt_host.Host, instance: objects.Instance) -> int | None:
    """The process id of the guest's controller, when libvirt says that processes refuse to die"""
    try:
        guest = host.get_guest(instance)
        controller: int = guest.id
        if guest.is_active():
            guest.poweroff()
    except nova_exception.InstanceNotFound:
        return None
    except libvirt.libvirtError as error:
        return controller if _REFUSAL in str(error) else None
    return None


def processes(controller: int, proc: pathlib.Path = _PROC) -> Iterator[str]:
    """``python3 (pid 4711, state D)``, for all in the guest's control group, which is named after
    its controller: ``lxc-4710-instance-00000001.libvirt-lxc``, by systemd with ``\\x2d`` for -."""
    dash = r"(-|\\x2d)"
    group = re.compile(rf"lxc{dash}{controller}{dash}")
    for process in proc.glob("[0-9]*"):
        try:
            if group.search((process / "cgroup").read_text()):
                name, _, rest = (process / "stat").read_text().rpartition(")")
                yield f"{name.partition('(')[2]} (pid {process.name}, state {rest.split()[0]})"
        except OSError:
            continue  # It has ended.
