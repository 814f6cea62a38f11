# SPDX-License-Identifier: Apache-2.0
"""The library folders made for containers, for as long as one has them bound."""

from __future__ import annotations

import pathlib

from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.host.container import libraries
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)


def prune(host: libvirt_host.Host, library_root: pathlib.Path) -> None:
    """Removes those that no guest has bound: of drivers that were replaced."""
    try:
        in_use = domains.mount_sources(host)
    except exception.DomainsUnreadable as error:
        LOG.warning("%s. The libraries that guests may use are all kept.", error)
        return
    for folder in libraries.prune(library_root, in_use):
        LOG.info("Removed the libraries in %s, which no guest uses any more", folder)
