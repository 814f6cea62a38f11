# SPDX-License-Identifier: Apache-2.0
"""The quota check for a stopped instance that released its GPUs and claims others at its start.

Nova's API checks the quota of new instances only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.limit import utils as limit_utils
from oslo_limit import exception as limit_exception
from oslo_limit import limit

from nova_gpu.core import boundary, exception
from nova_gpu.core.flavor.request import FlavorRequest

# Older releases of Nova lack it and enforce every limit.
_IS_ENFORCED = getattr(limit_utils, "should_enforce", lambda over: True)


def refuse_over(
    client: Any, instance: objects.Instance, flavor: FlavorRequest, *, has_them: bool
) -> None:
    """Refuse an instance whose GPUs would exceed its project's unified limits.

    As for a new instance, only GPUs that its flavor requests by a ``resources:`` extra spec count.

    :param client: Nova's report client
    :param has_them: whether the GPUs are already allocated to the instance in Placement
    :raises OverQuota: if a limit would be exceeded, or if the limits cannot be read
    """
    if not limit_utils.use_unified_limits():
        return
    counts: dict[str, int] = {}
    for request in flavor.requests:
        if request.counted:
            name = f"class:{request.resource_class}"
            counts[name] = counts.get(name, 0) + request.count
    if not counts:
        return

    def used(project_id: str | None, names: Collection[str]) -> dict[str, int]:
        context = nova_context.get_admin_context()
        usages = client.get_usages_counts_for_limits(context, project_id)
        return {name: usages.get(name.removeprefix("class:"), 0) for name in names}

    try:
        with boundary.crossed(limit_exception.ProjectOverLimit):
            deltas = dict.fromkeys(counts, 0) if has_them else counts
            limit.Enforcer(used).enforce(instance.project_id, deltas)
    except limit_exception.ProjectOverLimit as over:
        # A negative limit means unlimited, but some releases of oslo.limit enforce it.
        exceeded = [info for info in over.over_limit_info_list if info.limit >= 0]
        if exceeded and _IS_ENFORCED(over):
            raise exception.OverQuota(
                "; ".join(map(_in_words, exceeded)),
                "stop or delete other instances of the project, or ask for more quota",
            ) from over
    except boundary.Failure as error:
        raise exception.OverQuota(
            "the limits of its project cannot be read",
            "the operator must check [oslo_limit] of nova-compute",
            f"{type(error.error).__name__}: {error}",
        ) from error


def _in_words(over: Any) -> str:
    return (
        f"quota of {over.resource_name} is {over.limit}, {over.current_usage} in use, and "
        f"{over.delta} more asked for"
    )
