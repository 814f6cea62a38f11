# SPDX-License-Identifier: Apache-2.0
"""Nova's configuration with the [gpu] options in it: ``from nova_gpu.conf import CONF``."""

from oslo_config import cfg

from nova_gpu.conf import gpu, novas

CONF = cfg.CONF  # as nova.conf.CONF
novas.register(CONF)
gpu.register_opts(CONF)
