# SPDX-License-Identifier: Apache-2.0
"""What a nova-compute needs of Nova, imported in the order that Nova needs: seconds of a processor.

Of this repository it imports nothing: :mod:`lab.vm.saved` keeps what comes of it. To be
imported first, before there is any thread.
"""

from __future__ import annotations

import gc
import os

# Nova's tests go by this, its services by what they are told.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
from nova import monkey_patch

monkey_patch.patch(backend="threading")
gc.disable()  # of some thousand modules that are imported none is garbage

import os_vif  # noqa: E402

# It walks through the modules of all callers when it is imported, which are few now; and it looks
# through all that is installed, once for all forks.
os_vif.initialize()

# isort: split

import fixtures  # noqa: E402, F401
import nova.conf  # noqa: E402
import nova.db.main.api  # noqa: E402
import nova.privsep.qemu  # noqa: E402, F401
from nova import config, context, objects, rpc, service  # noqa: E402, F401
from nova.compute import manager  # noqa: E402, F401
from nova.compute import rpcapi as compute_rpcapi  # noqa: E402, F401
from nova.conductor import rpcapi as conductor_rpcapi  # noqa: E402, F401
from nova.objects import base  # noqa: E402, F401
from nova.tests.fixtures import glance, neutron  # noqa: E402, F401
from nova.virt.libvirt import driver  # noqa: E402, F401
from oslo_log import log  # noqa: E402, F401
from oslo_messaging.rpc import transport  # noqa: E402, F401

objects.register_all()
