# SPDX-License-Identifier: Apache-2.0
"""The boundary to what runs outside of this project, which may raise any exception.

privsep raises what its daemon raised, and errors of its own. The message bus, the database,
Placement, Keystone and libvirt have no common base class either, nor has a malformed answer. Where
a failure must cost one card or one instance, not the period or the start of the service, the call
stands in :func:`crossed`, and the caller catches :class:`Failure`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

LOG = logging.getLogger(__name__)


class Failure(Exception):
    """A failure outside; its text is that of ``error``, the exception that was raised there."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def crossed(*passing: type[Exception]) -> Iterator[None]:
    """Turn any exception of the block into a :class:`Failure`.

    :param passing: exceptions that the caller catches itself, and which pass unchanged
    :raises Failure: where the block raises anything else
    """
    try:
        yield
    except Exception as error:  # whatever is raised outside
        if isinstance(error, (Failure, *passing)):
            raise
        # With its class and stack, which the warning of the caller does not have
        LOG.debug("A call outside of nova-gpu failed", exc_info=True)
        raise Failure(error) from error
