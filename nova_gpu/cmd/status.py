# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu-status upgrade check``: checks that a host or controller is set up for nova-gpu.

It is to be run before an upgrade, like ``nova-status upgrade check``.
"""

from __future__ import annotations

import contextlib
import importlib
import platform
import sys
import traceback
from typing import Any

import nova.virt
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.limit import utils as limit_utils
from nova.virt.libvirt import utils as libvirt_utils
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from nova_gpu.cmd import card_facts, checks, downgrade_check, options, output, reports
from nova_gpu.cmd.checks import Code, Result, listed, warning
from nova_gpu.conf import CONF
from nova_gpu.conf.scheduling import NEVER
from nova_gpu.core import exception
from nova_gpu.core.flavor import request, validation
from nova_gpu.core.guest import machine_types
from nova_gpu.host.container import guest_processes
from nova_gpu.host.roots import Roots
from nova_gpu.virt import signatures
from nova_gpu.virt.delivery import pci_aliases

_PROG = "nova-gpu-status"
_FILTER = "nova_gpu.scheduler.filters.GPUFilter"
_WEIGHER = "nova_gpu.scheduler.weights.GPUWeigher"
# As in oslo.upgradecheck: an error in this program is not a warning.
_UNEXPECTED = 255


def _flavors_with_mistakes() -> list[str]:
    """Return a line for each mistake in the GPU extra specs of any flavor."""
    context = nova_context.get_admin_context()
    return [
        f"{flavor.name}: {mistake}"
        for flavor in objects.FlavorList.get_all(context)
        for mistake in validation.mistakes(request.of(flavor.extra_specs))
    ]


def _uncounted_flavors() -> list[str]:
    """Return a line for each flavor whose GPUs Nova's API does not count for quota."""
    context = nova_context.get_admin_context()
    lines = []
    for flavor in objects.FlavorList.get_all(context):
        with contextlib.suppress(exception.InvalidExtraSpec):  # that is among its mistakes
            by_model = CONF.gpu.count_models
            if missing := request.of(flavor.extra_specs).uncounted(by_model=by_model):
                words = " ".join(f"resources:{key}={count}" for key, count in missing.items())
                lines.append(f"{flavor.name} lacks {words}")
    return lines


class UpgradeChecks(checks.Checks):
    """The checks of ``nova-gpu-status upgrade check``.

    The docstring of each check names where the problem occurs, and the problem.
    """

    def _check_release(self) -> upgradecheck.Result:
        """everywhere: a release of Nova other than 2024.1 or 2025.1 to 2026.2 (29, 31 to 34)"""
        releases = signatures.untested()
        if releases is None:
            return Result(Code.SUCCESS)
        is_older = signatures.nova_release() < signatures.RELEASES[0]
        return Result(Code.FAILURE if is_older else Code.WARNING, releases)

    def _check_options(self) -> upgradecheck.Result:
        """everywhere: names in ``[gpu]`` that are no options"""
        return listed(list(options.unknown()), "These options do not exist and have no effect:")

    def _check_filter(self) -> upgradecheck.Result:
        """controllers: ``GPUFilter`` missing in available_filters or enabled_filters"""
        available = _FILTER in CONF.filter_scheduler.available_filters
        enabled = "GPUFilter" in CONF.filter_scheduler.enabled_filters
        if available and enabled:
            return Result(Code.SUCCESS)
        message = (
            f"nova-scheduler needs [filter_scheduler]available_filters = {_FILTER} as "
            "well as nova.scheduler.filters.all_filters, and GPUFilter in enabled_filters"
        )
        if available or enabled:
            return Result(Code.FAILURE, f"One of the two is missing: {message}.")
        if self._is_controller():
            return warning(f"Without GPUFilter flavors get no GPUs by their properties: {message}.")
        return Result(Code.SUCCESS, f"For controllers only: {message}.")

    def _check_weighers(self) -> upgradecheck.Result:
        """controllers: ``GPUWeigher`` as the only weigher"""
        # If this option has several lines, only the last counts.
        if CONF.filter_scheduler.weight_classes != [_WEIGHER]:
            return Result(Code.SUCCESS)
        return warning(
            "Nova's own weighers are off, so that hosts without GPUs are not ranked; set in one "
            "line: [filter_scheduler]weight_classes = "
            f"nova.scheduler.weights.all_weighers,{_WEIGHER}."
        )

    def _check_owners(self) -> upgradecheck.Result:
        """KVM hosts: cards that Nova offers too, by ``[pci]device_spec``"""
        if not CONF.pci.device_spec or CONF.libvirt.virt_type == "lxc":
            return Result(Code.SUCCESS)
        try:
            roots = Roots.of(CONF.gpu)
            spec = pci_aliases.DeviceSpec(CONF.pci.device_spec)
            cards = [
                f"{gpu.address}: {reason}"
                for gpu in card_facts.find()
                if (reason := spec.obstacle(gpu.functions, roots))
            ]
        except (exception.GPUError, nova_exception.NovaException, OSError, ValueError) as error:
            return warning(
                f"Cannot tell whether [pci]device_spec names cards of nova-gpu, too: {error}"
            )
        return listed(
            cards, "Both Nova, by [pci]device_spec, and nova-gpu offer these cards to instances:"
        )

    def _check_ports(self) -> upgradecheck.Result:
        """KVM hosts: cards that PCI Express ports do not separate, one guest's at a time"""
        return self.unseparated(
            "One guest at a time gets cards that PCI Express ports do not separate (see [gpu]"
            "allow_ports_without_acs); guests that have them already keep them:"
        )

    def _check_flavors(self) -> upgradecheck.Result:
        """controllers: mistakes in flavors, but for architectures that no host has"""
        return self.asked(_flavors_with_mistakes, "Instances of these flavors cannot be created:")

    def _check_hosts(self) -> upgradecheck.Result:
        """controllers: hosts with an older or newer nova-gpu, by their reports"""
        return self.asked(
            reports.other_releases,
            "These hosts run another release of nova-gpu than this one; install the same on all, "
            "and restart nova-compute (it reports again within a minute):",
        )

    def _check_candidates(self) -> upgradecheck.Result:
        """controllers: flavors with more candidates than ``[scheduler]max_placement_results``"""
        return self.asked(
            reports.crowded_flavors,
            "With all GPUs free these flavors have more allocation candidates than "
            f"[scheduler]max_placement_results = {CONF.scheduler.max_placement_results}, so that "
            "Placement leaves hosts out. Name a vgpu_type in them, raise the option, or set "
            "[placement]allocation_candidates_generation_strategy = breadth-first in Placement:",
        )

    def _check_stranded(self) -> upgradecheck.Result:
        """controllers: hosts with free GPUs, but no CPU or memory left for any flavor with GPUs"""
        if CONF.gpu.cpu_only_instances == NEVER:
            return Result(Code.SUCCESS)
        return self.asked(
            reports.stranded_gpus,
            "GPUs of these hosts are free, but what is left of CPU and memory suffices for no "
            "flavor with GPUs. Set [gpu]reserved_vcpus_per_free_gpu and "
            "reserved_memory_mib_per_free_gpu there, for which instances without GPUs then leave "
            "room:",
        )

    def _check_nodes(self) -> upgradecheck.Result:
        """controllers: flavors with more GPUs than the NUMA nodes of their cells have"""
        return self.asked(
            reports.flavors_on_too_few_nodes,
            "New instances of these flavors are refused, because no host has so many GPUs on as "
            "many NUMA nodes as their guests have cells. Add what is named here, or "
            "hw:pci_numa_affinity_policy=preferred:",
        )

    def _check_counted(self) -> upgradecheck.Result:
        """controllers with unified limits: flavors whose GPUs nova-api does not count"""
        if not limit_utils.use_unified_limits():
            return Result(Code.SUCCESS)
        return self.asked(
            _uncounted_flavors,
            "nova-api does not count the GPUs of these flavors; nova-scheduler does, if its "
            "configuration has unified limits as well. Add what they lack with openstack flavor "
            "set FLAVOR --property, so that nova-api refuses what exceeds a limit:",
        )

    def _check_shim(self) -> upgradecheck.Result:
        """everywhere: a driver that Nova cannot import, such as one in another site directory"""
        # Nova may also be unable to import the shim.
        try:
            importlib.import_module("nova.virt.gpu")
        except ImportError as error:
            return Result(
                Code.FAILURE,
                f"compute_driver = gpu.GPULibvirtDriver cannot be imported: {error}. Nova is in "
                f"{nova.virt.__path__[0]}; install nova-gpu with that Nova's own pip, or as a "
                "package of the same distribution.",
            )
        return Result(Code.SUCCESS)

    def _check_id_maps(self) -> upgradecheck.Result:
        """LXC hosts: ``[libvirt]uid_maps`` or ``gid_maps`` not set, or with ids of others"""
        if CONF.libvirt.virt_type != "lxc":
            return Result(Code.SUCCESS)
        if CONF.libvirt.uid_maps and CONF.libvirt.gid_maps:
            uids = guest_processes.ranges(CONF.libvirt.uid_maps)
            return listed(
                list(map(str, guest_processes.unknown(Roots.of(CONF.gpu), uids))),
                "These processes run as users of [libvirt]uid_maps outside all containers. Until "
                "they end, the cards of each instance that ends stay reserved; let no other "
                "program of the host use these ids (/etc/subuid):",
            )
        if CONF.gpu.allow_privileged_containers:
            return warning(
                "Root in an instance is root on this host: [gpu]allow_privileged_containers is "
                "true and [libvirt]uid_maps and gid_maps are not set."
            )
        return Result(
            Code.FAILURE,
            "No GPU is offered to containers: set [libvirt]uid_maps and [libvirt]gid_maps.",
        )

    def _check_machine_type(self) -> upgradecheck.Result:
        """KVM hosts: a default machine type without PCI Express"""
        # A controller has no compute_driver, and virt_type is kvm by default.
        if not CONF.compute_driver or CONF.libvirt.virt_type not in ("kvm", "qemu"):
            return Result(Code.SUCCESS)
        try:
            machine_types.refuse_without_pci_express(
                libvirt_utils.get_default_machine_type(platform.machine())
            )
        except exception.GuestUnfit as error:
            return warning(f"For images that set no machine type: {error}.")
        return Result(Code.SUCCESS)

    _upgrade_checks = (
        ("Nova's release is supported", _check_release),
        ("Driver can be imported by Nova", _check_shim),
        ("Options exist", _check_options),
        ("Containers are unprivileged", _check_id_maps),
        ("Guests have PCI Express", _check_machine_type),
        ("No card is both Nova's and nova-gpu's", _check_owners),
        ("PCI Express ports separate cards", _check_ports),
        ("Scheduler reads flavors", _check_filter),
        ("Nova's own weighers are enabled", _check_weighers),
        ("Flavors are right", _check_flavors),
        ("Pinned guests have near GPUs", _check_nodes),
        ("Nova counts flavors", _check_counted),
        ("Placement names all hosts", _check_candidates),
        ("Free GPUs can be used", _check_stranded),
        ("Hosts are of one version", _check_hosts),
    )


def add_commands(subparsers: Any) -> None:
    """Add the command of this program, as ``oslo_upgradecheck`` does, with ``--back``."""
    upgrade = subparsers.add_parser("upgrade")
    upgrade.add_argument("check")
    upgrade.add_argument(
        "--json", action="store_true", help="Print the results as JSON, not as a table"
    )
    upgrade.add_argument(
        "--back",
        action="store_true",
        help="Check what an older nova-gpu cannot take over, before it replaces this one",
    )


def main() -> int:
    """Run the checks; return the exit status, with the values of nova-status.

    It is 0 without problems, 1 for a warning, 2 if something must be done before the upgrade or the
    options cannot be read, 255 for an error in this program.
    """
    CONF.register_cli_opt(cfg.SubCommandOpt("command", handler=add_commands))
    try:
        with output.while_read():
            options.read(sys.argv[1:], _PROG)
            # The library's run() would print a traceback of every error.
            upgradecheck.CONF = CONF  # for --json
            return int(
                (
                    downgrade_check.DowngradeChecks() if CONF.command.back else UpgradeChecks()
                ).check()
            )
    except (nova_exception.NovaException, *options.Unreadable) as error:
        print(f"{_PROG}: {options.message(error)}", file=sys.stderr)
        return Code.FAILURE
    except Exception:  # noqa: BLE001 nova-status has a status of its own for it
        traceback.print_exc()
        return _UNEXPECTED


if __name__ == "__main__":
    sys.exit(main())
