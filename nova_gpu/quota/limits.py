# SPDX-License-Identifier: Apache-2.0
"""Unified limits of GPUs, where Nova's API enforces none: at starts, and of ``gpus`` alone.

The API counts what a flavor has as ``resources:``, for new and resized instances. nova-scheduler
and nova-compute enforce the rest, with the rules of Nova's own enforcement (``nova.limit``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova.limit import utils as limit_utils
from oslo_limit import exception as limit_exception
from oslo_limit import limit

from nova_gpu.core import boundary, exception

# Older releases of Nova lack it and enforce every limit.
_IS_ENFORCED = getattr(limit_utils, "should_enforce", lambda over: True)


def is_unified() -> bool:
    return bool(limit_utils.use_unified_limits())


def refuse_over(
    client: Any, project_id: str, deltas: Mapping[str, int], service: str, *, instances: int = 1
) -> None:
    """Refuse GPUs that would exceed a project's unified limits; do nothing without such limits.

    :param deltas: how many more GPUs are requested than Placement counts, by resource class
    :param service: the name of the calling service, for the operator
    :raises QuotaExceeded: if a limit would be exceeded, or if the limits cannot be read
    """
    if not is_unified() or not deltas:
        return

    def used(project_id: str | None, names: Collection[str]) -> dict[str, int]:
        context = nova_context.get_admin_context()
        usages = client.get_usages_counts_for_limits(context, project_id)
        return {name: usages.get(name.removeprefix("class:"), 0) for name in names}

    try:
        with boundary.crossed(limit_exception.ProjectOverLimit):
            by_name = {f"class:{name}": delta for name, delta in deltas.items()}
            limit.Enforcer(used).enforce(project_id, by_name)
    except limit_exception.ProjectOverLimit as over:
        # A negative limit means unlimited, but some releases of oslo.limit enforce it. A limit that
        # is not registered is 0 here, even where Nova does not enforce it.
        exceeded = [
            info
            for info in over.over_limit_info_list
            if info.limit >= 0
            and _is_enforced(limit_exception.ProjectOverLimit(project_id, [info]), service)
        ]
        if exceeded:
            raise exception.QuotaExceeded(
                "; ".join(map(_in_words, exceeded)), _remedy(exceeded, instances)
            ) from over
    except boundary.Failure as failure:
        raise _unread(failure, service) from failure


def _remedy(exceeded: Collection[Any], instances: int) -> str:
    """Return what the user can do.

    Of a request for several instances Nova's API starts as many as its own limits let. These here
    are started already, and Nova refuses all of them together.
    """
    more = "ask for more quota"
    if instances > 1:
        fit = min((info.limit - info.current_usage) * instances // info.delta for info in exceeded)
        if fit > 0:
            return f"ask for at most {fit} of the {instances} instances at once, or {more}"
    if any(info.current_usage for info in exceeded):
        return f"delete other instances of the project, or {more}"
    return more


def _is_enforced(over: limit_exception.ProjectOverLimit, service: str) -> bool:
    """Return whether Nova enforces the limit; newer releases ask Keystone if it is registered."""
    try:
        with boundary.crossed():
            return bool(_IS_ENFORCED(over))
    except boundary.Failure as failure:
        raise _unread(failure, service) from failure


def _unread(failure: boundary.Failure, service: str) -> exception.QuotaExceeded:
    return exception.QuotaExceeded(
        "the limits of its project cannot be read",
        f"the operator must check [oslo_limit] of {service}",
        f"{type(failure.error).__name__}: {failure}",
    )


def _in_words(over: Any) -> str:
    return (
        f"quota of {over.resource_name} is {over.limit}, {over.current_usage} in use, and "
        f"{over.delta} more asked for"
    )
