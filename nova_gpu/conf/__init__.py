# SPDX-License-Identifier: Apache-2.0
"""Nova's configuration with the [gpu] group in it: ``from nova_gpu.conf import CONF``."""

import nova.conf

from nova_gpu.conf import gpu

CONF = nova.conf.CONF
gpu.register_opts(CONF)
