# SPDX-License-Identifier: Apache-2.0
"""Reasons why new guests did not start, which Nova would leave out of their instances' faults.

If a host cannot start a guest, Nova's conductor tries the next one. The fault quotes the last
host's error only if ``[scheduler]max_attempts`` is exceeded. If fewer hosts than that can be tried,
``build_instances`` of ``nova.conductor.manager`` raises an error of its own, "Exhausted all hosts
...", after ``populate_retry`` has dropped the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import utils as nova_utils
from nova.compute import vm_states
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary

LOG = logging.getLogger(__name__)

# Nothing but its text tells the conductor's error from others: no column of a fault has the class,
# the code is that of most errors, the host is the conductor's, which may be a compute host as well,
# and the details are "NoneType: None" where the claim on the last host failed, because that error
# is not raised (measured with Nova 34). doc/source/contributor/upstream.rst asks for another way.
_DROPPED = "Exhausted all hosts available for retrying build failures"
# If several hosts failed, any of them may write the fault first.
_FAULT = "Exceeded maximum number of retries. One host's reason: %s"
_INTERNAL = 500
_LONGEST = 255  # length of the database's column


class LostReasons:
    """Reasons why guests did not start on this host, by the uuid of the instance."""

    def __init__(self) -> None:
        self._compute_host = CONF.host
        # With the text for the operator
        self._reasons: dict[str, tuple[str, str]] = {}

    @contextlib.contextmanager
    def noting(self, instance_uuid: str) -> Iterator[None]:
        """Wrap the start of a guest; note the reason if it fails and another host may start it."""
        try:
            yield
        except nova_exception.ComputeResourcesUnavailable as error:
            operators = str(error.__cause__ or error)
            self._reasons[instance_uuid] = error.format_message(), operators
            raise

    def write(self) -> None:
        """Add the reason to the fault of each instance that no host started; raise nothing."""
        context = nova_context.get_admin_context()
        for uuid, reasons in tuple(self._reasons.items()):
            try:
                with boundary.crossed():
                    if _is_settled(context, uuid, reasons, self._compute_host):
                        self._reasons.pop(uuid, None)
            except boundary.Failure as error:
                LOG.warning(
                    "Cannot add the reason why it did not start to its fault, will retry in the "
                    "next period: %s",
                    error,
                    instance_uuid=uuid,
                )


def _is_settled(
    context: nova_context.RequestContext, uuid: str, reasons: tuple[str, str], host: str
) -> bool:
    """Add *reasons* to the instance's fault if needed; return ``False`` while it has a task.

    It is needed if the instance is in ERROR because Nova ran out of hosts: that fault lacks the
    reason, and another fault, of *host*, is added. Its details, which administrators see, begin
    with the operator's reason. Return ``True`` also if the instance is deleted.
    """
    try:
        instance = objects.Instance.get_by_uuid(context, uuid)
    except nova_exception.InstanceNotFound:
        return True
    if instance.task_state is not None:
        return False
    fault = objects.InstanceFault.get_latest_for_instance(context, uuid)
    if instance.vm_state == vm_states.ERROR and fault and _DROPPED in fault.message:
        # Nova shows the details of faults with other codes to users, too.
        operators = f"{reasons[1]}\n\n" if fault.code == _INTERNAL else ""
        objects.InstanceFault(
            context,
            instance_uuid=uuid,
            host=host,
            code=fault.code,
            message=nova_utils.safe_truncate(_FAULT % reasons[0], _LONGEST),
            details=f"{operators}{fault.details}",
        ).create()
    return True
