# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu-status upgrade check``: is this host ready for nova-compute with GPUs?"""

from __future__ import annotations

import importlib
import platform
import sys

from nova.virt.libvirt import utils as libvirt_utils
from oslo_upgradecheck import upgradecheck

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.virt import guest_pci

_Result = upgradecheck.Result


class Checks(upgradecheck.UpgradeCommands):
    def _check_shim(self) -> upgradecheck.Result:
        """Nova and this package must lie in one site directory, or the shim is out of its reach."""
        try:
            importlib.import_module("nova.virt.gpu")
        except ImportError as error:
            import nova.virt

            return _Result(
                upgradecheck.Code.FAILURE,
                f"compute_driver = gpu.GPULibvirtDriver cannot be imported: {error}. Nova is in "
                f"{nova.virt.__path__[0]}; install nova-gpu with that Nova's own pip, or as a "
                "distribution package beside it.",
            )
        return _Result(upgradecheck.Code.SUCCESS)

    def _check_id_maps(self) -> upgradecheck.Result:
        if CONF.libvirt.virt_type != "lxc" or (CONF.libvirt.uid_maps and CONF.libvirt.gid_maps):
            return _Result(upgradecheck.Code.SUCCESS)
        if CONF.gpu.allow_privileged_containers:
            return _Result(
                upgradecheck.Code.WARNING,
                "Root in an instance is root on this host: [gpu]allow_privileged_containers is "
                "true and [libvirt]uid_maps and gid_maps are not set.",
            )
        return _Result(
            upgradecheck.Code.FAILURE,
            "No GPU is offered to containers: set [libvirt]uid_maps and [libvirt]gid_maps.",
        )

    def _check_machine_type(self) -> upgradecheck.Result:
        if CONF.libvirt.virt_type not in ("kvm", "qemu"):
            return _Result(upgradecheck.Code.SUCCESS)
        try:
            guest_pci.refuse_machine_type(
                libvirt_utils.get_default_machine_type(platform.machine())
            )
        except exception.GuestUnfit as error:
            return _Result(
                upgradecheck.Code.WARNING,
                f"Of an image that says nothing else {error}.",
            )
        return _Result(upgradecheck.Code.SUCCESS)

    _upgrade_checks = (
        ("Driver can be imported by Nova", _check_shim),
        ("Containers are unprivileged", _check_id_maps),
        ("Guests have PCI Express", _check_machine_type),
    )


def main() -> int:
    status: int = upgradecheck.main(CONF, project="nova", upgrade_command=Checks())
    return status


if __name__ == "__main__":
    sys.exit(main())
