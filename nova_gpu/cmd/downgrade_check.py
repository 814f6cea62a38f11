# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu-status upgrade check --back``: checks that an older nova-gpu can take over.

An older release cannot say what it does not know, so this one does: each check is about something
that came with this release, or with one of those before it that are still supported. A check goes
when the last release without its subject is no longer supported.
"""

from __future__ import annotations

import re

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_upgradecheck import upgradecheck

from nova_gpu.cmd import checks
from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.vgpu import vgpu
from nova_gpu.virt.inventory import discovery, provider_tree
from nova_gpu.virt.usage import records

# The mark of an instance that gave its GPUs back at a stop, without which a release that has it
# starts no such instance. This release needs none.
_RELEASED = "nova_gpu_released"
_OPERATOR_AND_COUNT = re.compile(r"\s*(==|>=|=)[^=\s]")

# Options that came after others, and what is without them
_OPTIONS = {
    "count_models": "that release drops the class that counts GPUs by model; nova-compute does not "
    "start while an instance counts by it. Delete or move such instances first",
    "divide_command": "the program does not run after the next boot of the host, and cards that it "
    "divides are given as their driver leaves them",
}


def _asks(request: FlavorRequest) -> bool:
    return request.asks_for_gpus or bool(request.vgpu_words)


def _stopped_without_gpus() -> list[str]:
    """Return the stopped instances that get GPUs at their next start and bear no mark of it."""
    filters = {"deleted": False, "vm_state": vm_states.STOPPED}
    wanted = ["flavor", "resources", "system_metadata"]
    return sorted(
        f"{instance.uuid} on {instance.host}"
        for context in checks.in_cells()
        for instance in objects.InstanceList.get_by_filters(context, filters, expected_attrs=wanted)
        if _asks(records.request_of(instance))
        and not any(
            resource.resource_class in names.RESOURCE_CLASSES
            for resource in instance.resources or ()
        )
        and _RELEASED not in instance.system_metadata
    )


def _counts_without_space() -> list[str]:
    """Return the flavors whose number of GPUs is right behind its operator."""
    context = nova_context.get_admin_context()
    return [
        f"{flavor.name}: {name}='{value}'"
        for flavor in objects.FlavorList.get_all(context)
        for name in (names.GPUS, names.VGPUS)
        if _OPERATOR_AND_COUNT.match(value := flavor.extra_specs.get(name, ""))
    ]


class DowngradeChecks(checks.Checks):
    """The checks of ``nova-gpu-status upgrade check --back``.

    The docstring of each check names where the problem occurs, and the problem.
    """

    def _check_stopped(self) -> upgradecheck.Result:
        """controllers: instances that gave their GPUs back at a stop and could not be started"""
        return self.asked(
            _stopped_without_gpus,
            "A release that marks instances which give their GPUs back starts none without its "
            "mark. Start these before, or resize them afterwards:",
            checks.Code.FAILURE,
        )

    def _check_counts(self) -> upgradecheck.Result:
        """controllers: numbers of GPUs in flavors that could not be read"""
        return self.asked(
            _counts_without_space,
            "A release that expects a space behind the operator starts no instance of these "
            "flavors. Write the number alone, and resize their instances:",
            checks.Code.FAILURE,
        )

    def _check_boards(self) -> upgradecheck.Result:
        """compute hosts: ``[gpu]product`` of a kind of board, which stops nova-compute"""
        lines = [line for line in CONF.gpu.product if line.partition(" ")[0].count(":") > 1]
        return checks.listed(
            lines,
            "With these lines of [gpu]product nova-compute of a release without the ids of "
            "subsystems does not start. Remove them before:",
            checks.Code.FAILURE,
        )

    def _check_functions(self) -> upgradecheck.Result:
        """KVM hosts: virtual functions whose types say how their card is divided"""
        try:
            types = {
                key.vgpu_type for key in provider_tree.Providers(discovery.providers_file()).kept()
            }
        except (OSError, ValueError) as error:
            return checks.warning(f"Cannot tell which vGPUs this host has: {error}")
        return checks.listed(
            sorted(item for item in types if item and vgpu.is_divided_function_type(item)),
            "A release that knows virtual functions without a type as vf alone does not know whose "
            "these are. Delete or move their instances before:",
            checks.Code.FAILURE,
        )

    def _check_options(self) -> upgradecheck.Result:
        """everywhere: options that would have no effect"""
        lines = [f"{name}: {what}" for name, what in _OPTIONS.items() if getattr(CONF.gpu, name)]
        return checks.listed(lines, "A release without these options of [gpu] ignores them:")

    def _check_ports(self) -> upgradecheck.Result:
        """KVM hosts: cards that PCI Express ports do not separate, given to several guests"""
        return self.unseparated(
            "A release without [gpu]allow_ports_without_acs gives cards that PCI Express ports do "
            "not separate to several guests, which can then read each other's memory:"
        )

    _upgrade_checks = (
        ("Stopped instances can be started", _check_stopped),
        ("Flavors can be read", _check_counts),
        ("Boards can be told apart", _check_boards),
        ("Virtual functions are known", _check_functions),
        ("Options have an effect", _check_options),
        ("PCI Express ports separate cards", _check_ports),
    )
