# SPDX-License-Identifier: Apache-2.0
"""The quota of a project whose instance takes GPUs again: Nova's API judges new instances alone."""

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

# Absent from older releases of Nova, where each limit that is exceeded counts.
_IS_ENFORCED = getattr(limit_utils, "should_enforce", lambda over: True)


def refuse_over(
    client: Any, instance: objects.Instance, flavor: FlavorRequest, *, has_them: bool
) -> None:
    """Refuse an instance whose project would be over its unified limits with its GPUs.

    As with a new instance only what its flavor says as ``resources:`` is judged.

    :param client: Nova's client of Placement
    :param has_them: whether Placement counts them for it already
    :raises OverQuota: then, and where the limits cannot be read
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
        # A negative limit is none, which not every release of oslo.limit knows.
        exceeded = [info for info in over.over_limit_info_list if info.limit >= 0]
        if exceeded and _IS_ENFORCED(over):
            raise exception.OverQuota(
                "; ".join(map(_in_words, exceeded)), "stop or delete others, or ask for more quota"
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
