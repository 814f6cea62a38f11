# SPDX-License-Identifier: Apache-2.0
"""Keeps a failure about GPUs from affecting instances without GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Log whatever goes wrong in the block, which instances without GPUs go through as well, and
    let them go on.

    :param what: what failed and what follows from it, for the log
    """
    try:
        yield
    except Exception:
        LOG.exception("%s. This is a bug, please report it", what)
