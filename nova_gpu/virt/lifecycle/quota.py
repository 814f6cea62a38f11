# SPDX-License-Identifier: Apache-2.0
"""Quota checks by nova-compute, of starts that Nova's API and scheduler do not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nova import objects
from nova.compute import task_states

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.quota import limits

_SERVICE = "nova-compute"


def refuse_over(
    client: Any, instance: objects.Instance, flavor: FlavorRequest, *, has_them: bool
) -> None:
    """Refuse a stopped instance new GPUs that would exceed its project's unified limits.

    :param client: Nova's report client
    :param has_them: whether the GPUs are already allocated to the instance in Placement
    :raises OverQuota: if a limit would be exceeded, or if the limits cannot be read
    """
    deltas = flavor.counts(by_model=CONF.gpu.count_models)
    try:
        limits.refuse_over(
            client,
            instance.project_id,
            dict.fromkeys(deltas, 0) if has_them else deltas,
            _SERVICE,
        )
    except exception.QuotaExceeded as error:
        raise exception.OverQuota(error.reason, error.remedy, error.others) from error


def recheck(client: Callable[[], Any], instance: objects.Instance, flavor: FlavorRequest) -> None:
    """Refuse a new instance if its allocation, with those made meanwhile, exceeds a limit.

    nova-scheduler judged it before Placement counted it, as the API does, after which
    nova-conductor checks again. Here only what these do not count is checked.

    :raises QuotaExceeded: if a limit is exceeded, or if the limits cannot be read
    """
    if instance.task_state == task_states.SPAWNING:
        deltas = flavor.uncounted(by_model=CONF.gpu.count_models)
        if deltas:
            limits.refuse_over(client(), instance.project_id, dict.fromkeys(deltas, 0), _SERVICE)
