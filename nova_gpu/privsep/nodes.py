# SPDX-License-Identifier: Apache-2.0
"""Rights of device nodes."""

from __future__ import annotations

import os
import stat

import nova.privsep

from nova_gpu.conf import CONF
from nova_gpu.core import device
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import roots as host_roots
from nova_gpu.host.container import nodes
from nova_gpu.host.pci import ours


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def open_to_guests(address: str) -> list[str]:
    """Lets everybody open the nodes of the GPU at *address*, or of the MIG instance at a slot;
    returns those it had to change.

    A guest's users are nobody to the host's nodes, and AMD's and Intel's are often for the group
    render only. The card is a guest's from now on; udev sets its own rights again at host boot.

    :raises InvalidValue: where *address* is neither
    """
    roots = host_roots.Roots.of(CONF.gpu)
    asked = device.parse(address)
    if ours.card(asked.parent if isinstance(asked, Slot) else asked, CONF.gpu) is None:
        return []
    given = nodes.guest_nodes(asked, roots)
    return [node for node in given if _open(node, roots)]


def _open(node: str, roots: host_roots.Roots) -> bool:
    """Whether the rights of *node* were changed: they are, of a character device below dev_root."""
    path = nodes.on_host(node, roots)
    if not path.parent.resolve().is_relative_to(roots.dev.resolve()):
        return False
    try:
        # O_PATH names the node without a call to its driver, and what was looked at is changed.
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        mode = os.fstat(fd).st_mode
        wanted = nodes.open_mode(node, mode)
        if wanted == mode or not stat.S_ISCHR(mode):
            return False
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(wanted))
    finally:
        os.close(fd)
    return True
