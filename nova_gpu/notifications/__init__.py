# SPDX-License-Identifier: Apache-2.0
"""Notifications of what happens to GPUs, on Nova's own bus.

They go out as Nova's do: ``[notifications]notification_format`` says in which form, and
``[oslo_messaging_notifications]`` whether, where and how.
"""

from __future__ import annotations

import functools

from nova import context as nova_context
from nova import rpc

from nova_gpu.conf import CONF
from nova_gpu.core import events
from nova_gpu.notifications.outbox import Outbox

_outbox = Outbox()


def emit(event: events.Event, context: nova_context.RequestContext | None = None) -> None:
    """Sends *event*, later and in the order of the calls. It raises nothing and waits for nobody.

    :param context: of the request that brought it about
    """
    if rpc.LEGACY_NOTIFIER is None or rpc.NOTIFIER is None:
        return  # a command, not a service
    context = context or nova_context.get_admin_context()
    service = event.type.service
    priority = "error" if event.type.is_error else "info"
    # Of the two notifiers the one whose format is not wanted does nothing. The first is used by
    # itself, not through nova.rpc.get_notifier: that warns of every type it has no entry for.
    plain = rpc.LEGACY_NOTIFIER.prepare(publisher_id=f"{service}.{CONF.host}")
    versioned = rpc.NOTIFIER.prepare(publisher_id=f"nova-{service}:{CONF.host}")
    payload = event.payload
    envelope = {
        "nova_object.name": "GPUPayload",
        "nova_object.namespace": "nova_gpu",
        "nova_object.version": events.VERSION,
        "nova_object.data": payload,
    }
    for notifier, content in ((plain, payload), (versioned, envelope)):
        send = getattr(notifier, priority)
        _outbox.put(functools.partial(send, context, str(event.type), content))
