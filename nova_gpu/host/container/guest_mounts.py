# SPDX-License-Identifier: Apache-2.0
"""What is mounted in a running container over the device nodes that libvirt made there.

libvirt-LXC takes a node from a running container (lxcDomainDetachDeviceHostdevMiscLive), but not
the host's that is bound over it: the first fails with EBUSY, and the device cgroup goes on allowing
it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from nova_gpu.host import child

SCRIPT = pathlib.Path(__file__).with_name("unmount.py")


def unmount(controller: int, nodes: Sequence[str], timeout_s: float) -> None:
    """Unmounts these nodes in the container of the process *controller*, in its mount namespace
    alone. For root.

    :raises Failed: where one of them stays mounted
    """
    request = {"controller": controller, "nodes": list(nodes)}
    child.run(child.script(SCRIPT, json.dumps(request)), timeout_s)
