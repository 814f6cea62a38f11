# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu flavor create NAME --gpus N ...``"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions
from osc_lib.cli import format_columns, parseractions
from osc_lib.command import command

from nova_gpu.core import exception, names
from nova_gpu.osc import flavors, rest

# From here on the API judges extra specs.
_CHECKED = "2.86"
_SHOWN = ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap", "is_public")


class CreateFlavor(command.ShowOne):
    """Create a flavor with GPUs that quota counts.

    It gets the words the scheduler reads (gpus, gpu_arch, hypervisor) and resources:PGPU, which is
    what the quota of class:PGPU counts; the two always agree.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add = parser.add_argument
        add("name", metavar="<flavor-name>", help="Name of the new flavor")
        add("--id", metavar="<id>", help="ID of the new flavor (default: a new UUID)")
        add("--gpus", type=int, required=True, metavar="<n>", help="GPUs of an instance")
        add("--arch", metavar="<name>", help="Their architecture (fermi, or 's!= fermi', ...)")
        add("--hypervisor", metavar="<name>", help="LXC or KVM (or 's== LXC', ...)")
        add("--vcpus", type=int, default=1, metavar="<n>", help="VCPUs (default: 1)")
        add("--ram", type=int, default=256, metavar="<MiB>", help="Memory in MiB (default: 256)")
        add("--disk", type=int, default=0, metavar="<GiB>", help="Disk in GiB (default: 0)")
        add("--ephemeral", type=int, default=0, metavar="<GiB>", help="(default: 0)")
        add("--swap", type=int, default=0, metavar="<MiB>", help="(default: 0)")
        add("--description", metavar="<text>", help="Description of the flavor")
        public = parser.add_mutually_exclusive_group()
        public.add_argument("--public", dest="public", action="store_true", default=True)
        public.add_argument(
            "--private",
            dest="public",
            action="store_false",
            help="Only for projects that are given access to it (default: public)",
        )
        add(
            "--property",
            metavar="<key=value>",
            dest="properties",
            action=parseractions.KeyValueAction,
            default={},
            help="Any further property (repeat for several)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        specs = properties(
            parsed_args.gpus, parsed_args.arch, parsed_args.hypervisor, parsed_args.properties
        )
        compute = self.app.client_manager.sdk_connection.compute
        fields = {
            "name": parsed_args.name,
            "vcpus": parsed_args.vcpus,
            "ram": parsed_args.ram,
            "disk": parsed_args.disk,
            "ephemeral": parsed_args.ephemeral,
            "swap": parsed_args.swap,
            "is_public": parsed_args.public,
        }
        if parsed_args.id:
            fields["id"] = parsed_args.id
        if parsed_args.description:
            fields["description"] = parsed_args.description
        with rest.clean_refusals("Nova"):
            flavor = compute.create_flavor(**fields)
            try:
                # Not by the proxy's own method: that speaks a version which checks no values.
                answer = compute.post(
                    f"/flavors/{flavor.id}/os-extra_specs",
                    json={"extra_specs": specs},
                    microversion=_CHECKED,
                )
                sdk_exc.raise_from_response(answer)
            except Exception:
                # A flavor of that name without its GPUs would be taken for the one asked for.
                compute.delete_flavor(flavor)
                raise
        shown = [getattr(flavor, field) for field in _SHOWN]
        return (*_SHOWN, "properties"), (*shown, format_columns.DictColumn(specs))


def properties(
    gpus: int, architecture: str | None, hypervisor: str | None, more: Mapping[str, str]
) -> dict[str, str]:
    """The extra specs of a flavor for so many GPUs.

    :param more: others; none that says something else of what is said here
    :raises CommandError: where the scheduler would refuse them
    """
    specs = {names.GPUS: f"= {gpus}", f"resources:{names.RESOURCE_CLASS}": str(gpus)}
    for key, value in ((names.GPU_ARCH, architecture), (names.HYPERVISOR, hypervisor)):
        if value:
            specs[key] = value if " " in value.strip() else f"s== {value.strip()}"
    for key, value in more.items():
        if specs.setdefault(key, value) != value:
            raise exceptions.CommandError(
                f"--property {key}={value} contradicts the options, which say {specs[key]!r}"
            )
    try:
        flavors.requests(specs)
    except exception.InvalidExtraSpec as e:
        raise exceptions.CommandError(str(e)) from e
    return specs
