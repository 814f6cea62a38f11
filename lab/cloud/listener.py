# SPDX-License-Identifier: Apache-2.0
"""Script that prints each notification about GPUs as one line of JSON.

It reads them like a billing or alarm service: as a listener of oslo.messaging on the cloud's
RabbitMQ. Its argument is the path of a nova.conf. The lab's own Python runs it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

READY = "listening"


class _Endpoint:
    """An endpoint for oslo.messaging, which calls the method named after the priority."""

    def _heard(
        self, context: Any, publisher_id: str, event_type: str, payload: Any, metadata: Any
    ) -> None:
        heard = {"event_type": event_type, "publisher_id": publisher_id, "payload": payload}
        print(json.dumps(heard), flush=True)

    info = error = _heard


def main(config_file: str) -> None:
    import oslo_messaging
    from oslo_config import cfg

    cfg.CONF(["--config-file", config_file], project="listener")
    endpoint = _Endpoint()
    endpoint.filter_rule = oslo_messaging.NotificationFilter(  # type: ignore[attr-defined]
        event_type=r"^gpu\."
    )
    listener = oslo_messaging.get_notification_listener(
        oslo_messaging.get_notification_transport(cfg.CONF),
        [oslo_messaging.Target(topic="notifications")],
        [endpoint],
        executor="threading",
    )
    listener.start()
    print(READY, flush=True)
    listener.wait()


if __name__ == "__main__":
    main(sys.argv[1])
