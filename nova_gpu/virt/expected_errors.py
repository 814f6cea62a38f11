# SPDX-License-Identifier: Apache-2.0
"""Refusals in the log of nova-compute: one line for each, without a traceback."""

from __future__ import annotations

import logging as python_logging
from typing import TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_RPC_LOG = "oslo_messaging.rpc.server"
_MARK = "is_expected_by_nova_gpu"
Error = TypeVar("Error", bound=Exception)


def expected(error: Error) -> Error:
    """Mark *error* as a refusal, so that the log shows it in one line, and return it.

    A refusal is no fault of the service, so the log needs no traceback. The instance's user reads
    the error.
    """
    setattr(error, _MARK, True)
    return error


class _Expected(python_logging.Filter):
    def filter(self, record: python_logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not hasattr(error, _MARK):
            return True
        LOG.info("Refused: %s", error)
        return False


_EXPECTED = _Expected()


def log_in_a_line() -> None:
    """Make oslo.messaging log errors that :func:`expected` has marked in one line.

    Nova's manager does not declare them as expected exceptions, so oslo.messaging would log each
    with its traceback.
    """
    python_logging.getLogger(_RPC_LOG).addFilter(_EXPECTED)
