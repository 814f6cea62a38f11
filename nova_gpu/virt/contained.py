# SPDX-License-Identifier: Apache-2.0
"""What instances without GPUs must not fail of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Around what is done for instances without GPUs as well: they must not fail of it, whatever
    goes wrong."""
    try:
        yield
    except Exception:
        LOG.exception("%s. Please report this", what)
