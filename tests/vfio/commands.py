# SPDX-License-Identifier: Apache-2.0
"""A command of nova-gpu in the VM that uses the message bus, in a fork of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any, NoReturn
from unittest import mock

from nova import rpc

from nova_gpu.cmd import gpu
from nova_gpu.conf import CONF
from tests.cloud import compute
from tests.vfio import place

OUTPUT = place.STATE / "command.log"


def run(words: Sequence[str], connect: Callable[[], connection.Connection[Any, Any]]) -> NoReturn:
    """Run ``nova-gpu`` with these *words* and nova-compute's options, and end this process.

    :param connect: opens the stream that stands in for a broker
    """
    file = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    compute.join_bus(connect(), {})
    CONF.clear()  # of what the process that was forked had read
    with mock.patch.object(rpc, "init"):  # there is no broker
        status = gpu.main(["nova-gpu", "--config-file", str(place.CONFIGURATION), *words])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
