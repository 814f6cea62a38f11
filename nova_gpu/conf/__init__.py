# SPDX-License-Identifier: Apache-2.0
"""Nova's configuration with the [gpu] options in it: ``from nova_gpu.conf import CONF``.

A module that commands use reads Nova's own options from ``NOVAS``, because in a light command
``CONF`` has none of them.
"""

from oslo_config import cfg

from nova_gpu.conf import gpu, novas

CONF = cfg.CONF  # as nova.conf.CONF
NOVAS = novas.Options()
gpu.register_opts(CONF)
