# SPDX-License-Identifier: Apache-2.0
"""The boundary to code outside this project, which may raise any exception.

privsep raises what its daemon raised, and errors of its own. The message bus, the database,
Placement, Keystone and libvirt have no common base class, and a malformed answer raises anything.
Where a failure may cost one card or one instance, but not the period or the start of the service,
the call runs inside :func:`crossed`, and the caller catches :class:`Failure`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from nova_gpu.core.printable import MOST_OF_A_LINE, printable

LOG = logging.getLogger(__name__)


class Failure(Exception):
    """A failed call of outside code; its text is that of ``error``, the original exception.

    The text is one line: Placement's answers, for example, have line feeds.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(printable(str(error).strip(), MOST_OF_A_LINE))
        self.error = error

    @property
    def first_line(self) -> str:
        """The first line of the text, or the type of ``error`` if it has none.

        An error of another service also has its stack trace, below the first line.
        """
        first, *_ = str(self.error).strip().splitlines() or [type(self.error).__name__]
        return printable(first)


@contextlib.contextmanager
def crossed(*passing: type[Exception]) -> Iterator[None]:
    """Turn any exception of the block into a :class:`Failure`.

    :param passing: exceptions that pass unchanged, because the caller catches them itself
    :raises Failure: if the block raises anything else
    """
    try:
        yield
    except Exception as error:  # whatever is raised outside
        if isinstance(error, (Failure, *passing)):
            raise
        # The class and the traceback are logged here, because the caller's warning lacks them.
        LOG.debug("A call outside of nova-gpu failed", exc_info=True)
        raise Failure(error) from error
