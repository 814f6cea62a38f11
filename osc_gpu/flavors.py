# SPDX-License-Identifier: Apache-2.0
"""Flavors as Nova's API shows them to the user, and ``openstack gpu flavor create``."""

from __future__ import annotations

import argparse
import contextlib
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions
from osc_lib.cli import format_columns, parseractions

from nova_gpu import data
from nova_gpu.core import exception, names
from nova_gpu.core.flavor import condition, gpu_extra_specs, request, summary, validation
from nova_gpu.core.flavor.declaration import ExtraSpec
from nova_gpu.core.flavor.request import FlavorRequest
from osc_gpu import base_command, descriptions, hosts, projects, query, rest
from osc_gpu.resource_request import Size

_COUNTED = {names.GPUS: names.RESOURCE_CLASS, names.VGPUS: names.VGPU_RESOURCE_CLASS}
_OPTIONS = tuple((word, word.option) for word in gpu_extra_specs.WORDS if word.option)
_SHOWN = ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap", "is_public")

NOTHING = "no GPU"
# From this version on the API validates values. The proxy's own methods use an older one.
_CHECKED = "2.86"
# The hypervisors by Nova's names, and the other name that a flavor may use for QEMU.
_HYPERVISORS = ("kvm", "lxc", "qemu")


def read(connection: Any, named: Sequence[str] = ()) -> Iterator[Any]:
    """Yield flavors with their extra specs.

    :param named: names or IDs; without any, all flavors
    :raises CommandError: if one of *named* is no flavor
    """
    with rest.clean_refusals("Nova"):
        if not named:
            yield from connection.compute.flavors(
                details=True, is_public=None, get_extra_specs=True
            )
        for name in named:
            yield connection.compute.find_flavor(name, ignore_missing=False, get_extra_specs=True)


def write(connection: Any, flavor: Any, specs: Mapping[str, str]) -> None:
    """Set extra specs of *flavor* in a microversion in which nova-api validates them.

    :raises SDKException: if Nova refuses them; a caller needs :func:`osc_gpu.rest.clean_refusals`
    """
    answer = connection.compute.post(
        f"/flavors/{flavor.id}/os-extra_specs",
        json={"extra_specs": dict(specs)},
        microversion=_CHECKED,
    )
    sdk_exc.raise_from_response(answer)


def request_of(flavor: Any) -> FlavorRequest:
    """Return the GPU request of a flavor from openstacksdk, listed or embedded in a server."""
    return request.of(flavor.extra_specs or {})


def in_words(flavor_request: FlavorRequest) -> str:
    """Return the GPU request as a text for users; empty if the flavor requests no GPU."""
    words = " and ".join(map(summary.all_of, flavor_request.requests))
    if words:
        with contextlib.suppress(exception.InvalidExtraSpec):  # that is among its mistakes
            words += gpu_extra_specs.suffixes(flavor_request.extra_specs)
    return words


def asked_for(flavor_request: FlavorRequest) -> str:
    """Return the GPU request as a text for users, or the mistakes in the flavor."""
    try:
        if words := in_words(flavor_request):
            return words
    except exception.InvalidExtraSpec:
        pass
    return "; ".join(validation.mistakes(flavor_request)) or NOTHING


class CreateFlavor(base_command.ShowOne):
    """Create a flavor with GPUs or vGPUs that quota counts.

    It gets the properties that the scheduler reads (gpus, gpu_arch, ...; vgpus, vgpu_type, ...) and
    resources:PGPU or resources:VGPU, which the quotas of class:PGPU and class:VGPU count; the two
    always agree. Where hosts count GPUs by model, --model also adds that model's resource class.
    For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add = parser.add_argument
        add("name", metavar="<flavor-name>", help="Name of the new flavor")
        add("--id", metavar="<id>", help="ID of the new flavor (default: a new UUID)")
        add("--gpus", type=int, metavar="<n>", help="Number of GPUs of an instance")
        add(
            "--vgpus",
            type=int,
            metavar="<n>",
            help="Number of vGPUs (parts of GPUs) of an instance",
        )
        for word, option in _OPTIONS:
            add(
                option.flag,
                dest=word.name,
                metavar=option.metavar,
                choices=[str(end) for end in word.choices] or None,
                help=option.help,
            )
        add("--vcpus", type=int, default=1, metavar="<n>", help="VCPUs (default: 1)")
        add("--ram", type=int, default=256, metavar="<MiB>", help="Memory in MiB (default: 256)")
        add(
            "--disk",
            type=int,
            default=0,
            metavar="<GiB>",
            help="Disk in GiB (default: 0, for instances on volumes, and those of administrators)",
        )
        add(
            "--ephemeral",
            type=int,
            default=0,
            metavar="<GiB>",
            help="Second disk in GiB (default: 0)",
        )
        add("--swap", type=int, default=0, metavar="<MiB>", help="Swap disk in MiB (default: 0)")
        add("--description", metavar="<text>", help="Description of the flavor")
        public = parser.add_mutually_exclusive_group()
        public.add_argument(
            "--public",
            dest="public",
            action="store_true",
            default=True,
            help="Let all projects have the flavor (default)",
        )
        public.add_argument(
            "--private",
            dest="public",
            action="store_false",
            help="Hide the flavor from projects without access to it",
        )
        projects.add_option(parser, "With --private: let this project have the flavor")
        add(
            "--describe-for",
            dest="programs",
            action="append",
            choices=list(descriptions.PROGRAMS),
            default=[],
            help="Another program that reads the GPUs of flavors in properties of its own: EGI's "
            "accounting, names of the Sovereign Cloud Stack, or Skyline (repeat for several)",
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
        stated = {word.name: getattr(parsed_args, word.name) for word, _ in _OPTIONS}
        specs = properties(
            {names.GPUS: parsed_args.gpus, names.VGPUS: parsed_args.vgpus},
            stated,
            parsed_args.properties,
        )
        if parsed_args.projects and parsed_args.public:
            raise exceptions.CommandError("--project is of no use without --private")
        connection = self.connection(parsed_args)
        owners = projects.ids(connection, parsed_args.projects)
        for model, count in request.of(specs).uncounted(by_model=True).items():
            if model in query.model_classes(connection):
                specs[f"resources:{model}"] = str(count)
        # The values of --property are not checked: they may name what the table does not know yet.
        of_options = {key: specs[key] for key in specs.keys() - parsed_args.properties.keys()}
        refuse_unknown(of_options, lambda: query.known_traits(connection))
        specs = descriptions.of(parsed_args.name, parsed_args.programs, specs)
        compute = connection.compute
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
            try:
                flavor = compute.create_flavor(**fields)
            except sdk_exc.ConflictException as e:
                _refuse_half_made(connection, parsed_args.name)
                raise e
            with contextlib.ExitStack() as undo:
                # An existing flavor without GPUs would otherwise look like the requested one.
                undo.callback(compute.delete_flavor, flavor)
                write(connection, flavor, specs)
                for owner in owners:
                    compute.flavor_add_tenant_access(flavor, owner)
                undo.pop_all()
        # The flavor exists, whether or not Placement answers, and this user may ask it.
        with contextlib.suppress(exceptions.CommandError):
            size, wanted = Size.of(flavor), request.of(specs)
            if why := (
                hosts.why_never(connection, size, wanted)
                or hosts.too_few_nodes(connection, size, wanted)
            ):
                self.say(f"WARNING: no instance of {parsed_args.name} can start now: {why}")
        shown = [getattr(flavor, field) for field in _SHOWN]
        return (*_SHOWN, "properties"), (*shown, format_columns.DictColumn(specs))


def _refuse_half_made(connection: Any, name: str) -> None:
    """Refuse a flavor of this name without properties, which a killed run of this command left."""
    flavor = connection.compute.find_flavor(name, get_extra_specs=True)
    if flavor and not flavor.extra_specs:
        raise exceptions.CommandError(
            f"a flavor {name} without properties exists; if an interrupted run of this command "
            f"left it, run openstack flavor delete {flavor.id}, and then this command again"
        )


def properties(
    counts: Mapping[str, int | None], words: Mapping[str, str | None], more: Mapping[str, str]
) -> dict[str, str]:
    """Return the extra specs of a flavor with these numbers of GPUs and vGPUs.

    :param counts: the numbers, by ``gpus`` and ``vgpus``; ``None`` if the option is missing
    :param words: nova-gpu's other extra specs, by key; empty values are ignored
    :raises CommandError: if two contradict each other, or the scheduler would refuse one
    """
    specs: dict[str, str] = {}
    for key, count in counts.items():
        if count is not None:
            specs |= {key: f"= {count}", f"resources:{_COUNTED[key]}": str(count)}
    if not specs:
        raise exceptions.CommandError("a flavor with GPUs needs --gpus, --vgpus or both")
    for key, value in words.items():
        if value:
            is_name = key in gpu_extra_specs.OF_NAMES and " " not in value.strip()
            # The member of an enum would be stored as such instead of its text.
            specs[key] = f"s== {value.strip()}" if is_name else str(value)
    for key, value in more.items():
        if specs.setdefault(key, value) != value:
            raise exceptions.CommandError(
                f"--property {key}={value} contradicts the options, which say {specs[key]!r}"
            )
    try:
        request.of(specs).check()
        for error in gpu_extra_specs.contradictions(specs):
            raise error
    except exception.InvalidExtraSpec as e:
        raise exceptions.CommandError(str(e)) from e
    return specs


def refuse_unknown(specs: Mapping[str, str], known_traits: Callable[[], Collection[str]]) -> None:
    """Refuse names that :func:`unknown_names` yields.

    :raises CommandError: with the most similar known name, or all of them
    """
    for word, name, reason in unknown_names(specs, known_traits):
        more = _OF_YOUR_OWN if word is gpu_extra_specs.GPU_ARCH else ""
        flag = word.option.flag if word.option else word.name
        raise exceptions.CommandError(f"{flag} {name} is {reason}{more}")


def unknown_names(
    specs: Mapping[str, str], known_traits: Callable[[], Collection[str]]
) -> Iterator[tuple[ExtraSpec[Any], str, str]]:
    """Yield each extra spec with an architecture or a hypervisor that no host with GPUs can have.

    Each is yielded with the name and the reason. An architecture is unknown if neither the table of
    products nor a host has it.

    :param known_traits: reads the traits of all hosts; called only if the table lacks a name
    :raises InvalidExtraSpec: if one of the two cannot be parsed
    """
    hypervisor = gpu_extra_specs.HYPERVISOR.of(specs)
    if unknown := _unknown(hypervisor, _HYPERVISORS):
        reason = f"no hypervisor of hosts with GPUs; {_hint(unknown, _HYPERVISORS)}"
        yield gpu_extra_specs.HYPERVISOR, unknown, reason
    architecture = gpu_extra_specs.GPU_ARCH.of(specs)
    known = {names.word(product) or "" for _, _, product, _ in data.products()} - {""}
    if _unknown(architecture, known):
        known |= names.known_values(names.TRAIT_ARCHITECTURE, known_traits())
    if unknown := _unknown(architecture, known):
        yield gpu_extra_specs.GPU_ARCH, unknown, f"an unknown architecture; {_hint(unknown, known)}"


_OF_YOUR_OWN = f" (for one that no host has yet: --property {names.GPU_ARCH}='s== NAME')"


def _unknown(expression: condition.Condition | None, known: Collection[str]) -> str | None:
    """Return the first whole name (not ``<in>``) that *expression* requires and *known* lacks."""
    if expression is None or expression.operator is condition.Operator.IN:
        return None
    return next(iter(sorted(expression.values - set(known))), None)


def _hint(name: str, known: Collection[str]) -> str:
    alike = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(sorted(known))}"
