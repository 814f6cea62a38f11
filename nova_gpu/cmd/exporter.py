# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu exporter``"""

from __future__ import annotations

import pathlib
import re
import sys
import threading

import prometheus_client
from oslo_log import log as logging

from nova_gpu.cmd import arguments, metrics
from nova_gpu.conf import CONF
from nova_gpu.virt.inventory import survey

LOG = logging.getLogger(__name__)

_LISTEN = re.compile(r"\[?([0-9A-Za-z.:-]+?)\]?:([0-9]{1,5})")


def main(
    looked: survey.Survey, listen: str, *, once: bool, stop: threading.Event | None = None
) -> int:
    """Serves the metrics until it is ended, or prints them *once*.

    :param stop: ends it
    :returns: 0, or 2 where *listen* is no address
    :raises OSError: where nobody can listen there
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.Metrics(looked, pathlib.Path(CONF.state_path)))
    if once:
        print(prometheus_client.generate_latest(registry).decode(), end="")
        return 0
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[2]) > 65535:
        print(f"nova-gpu: --listen {listen}: it must look like {arguments.LISTEN}", file=sys.stderr)
        return 2
    try:
        server, thread = prometheus_client.start_http_server(int(match[2]), match[1], registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"--listen {listen}: {reason}; free that address, or give another one"
        ) from error
    LOG.info("Metrics of this host's GPUs are at http://%s/metrics", listen)
    try:
        (stop or threading.Event()).wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return 0
