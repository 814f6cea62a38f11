# SPDX-License-Identifier: Apache-2.0
"""tools/lab: brings up a whole OpenStack with GPUs on one machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence

from lab.cloud import (
    cloud,
    compute,
    controls,
    demo,
    guide,
    limits,
    notifications,
    ports,
    process,
    services,
    settings,
    steps,
    upgrade,
)

_DESCRIPTION = """\
A whole OpenStack on this machine, with this project's compute driver in it: Keystone, Glance,
Placement, Nova (API, scheduler, conductor, compute) as separate processes from PyPI, MariaDB,
RabbitMQ and libvirt's LXC driver from Debian, and GPUs that are only pretended unless --real is
given. Needs Debian 12 or 13, and root; neither systemd nor sudo.
"""
_EPILOG = """\
All state is in one folder, by default /var/lib/nova-gpu-lab (--dir, or NOVA_GPU_LAB_DIR); downloads
in it are used again. Outside of it: Debian's packages, which stay, and user nova while the lab is
up. Nothing listens but on 127.0.0.1.

    tools/lab demo                     all there is to see, and everything taken down again
    tools/lab demo --debian            the same with Debian 13's own OpenStack, on a machine that is
                                       thrown away: its packages and their configuration stay
    tools/lab guide [--kvm]            the documentation's commands, tried word by word
    tools/lab upgrade HEAD~50          a cloud upgraded from there and set back, under guests
    tools/lab up                       a cloud to play with
    eval "$(tools/lab openrc)"         now openstack and nova are this cloud's
    tools/lab compute -- virsh -c lxc:/// list        on the compute host
    tools/lab up --computes 2          two compute hosts, to move instances between
    tools/lab up --kvm                 a compute host in an emulated VM with cards, for KVM
    tools/lab up --kvm --stock         ... which has Nova's own driver yet, for adopt and leave
    tools/lab power-off compute-1      ... to evacuate them (doc/source/admin/moving.rst)
    tools/lab down                     nothing is left but the folder
"""


_NEXT = """
The cloud is up. Type, for a flavor with 2 GPUs and an instance with it:

    eval "$({program} openrc)"
    openstack gpu flavor create two --gpus 2 --disk 1
    openstack gpu server create --flavor two --image busybox --nic none first

and for all commands, those on a compute host too, and the check of the controller's settings:

    openstack gpu help
    {program} compute -- nova-gpu --help
    {status} upgrade check

To type as the tenant demo, who is no administrator:

    eval "$({program} openrc demo)"
"""
_NEXT_KVM = """
The cloud is up. Type, for a flavor with a GPU and an instance with it, and for what that sees:

    eval "$({program} openrc)"
    openstack gpu flavor create one --gpus 1 --ram 192
    openstack gpu server create --flavor one --image busybox --nic none first
    openstack console log show first
    {program} compute -- nova-gpu list
"""
_NEXT_STOCK = """
The cloud is up, and its compute host has Nova's own driver. Type, for an instance with a card:

    eval "$({program} openrc)"
    openstack flavor create one --ram 192 --disk 0 --property pci_passthrough:alias=gpu:1,sound:1
    openstack server create --wait --flavor one --image busybox --nic none first

What nova-gpu would do, then with it, and back:

    {program} compute -- nova-gpu shadow
    {program} compute -- nova-gpu adopt
    {program} stop-compute
    {program} compute -- cp /etc/nova/nova.conf.nova-gpu /etc/nova/nova.conf
    {program} compute -- nova-gpu adopt --apply --with-gpufilter
    {program} start-compute
    {program} compute -- nova-gpu list
    {program} stop-compute
    {program} compute -- cp /etc/nova/nova.conf.stock /etc/nova/nova.conf
    {program} compute -- nova-gpu leave --apply
    {program} start-compute
"""


def _up(arguments: argparse.Namespace) -> int:
    if arguments.real and (arguments.computes or 1) > 1:
        raise steps.Failed("--real goes with one compute host only: two would offer the same GPUs")
    if arguments.stock and not arguments.kvm:
        raise steps.Failed("--stock goes with --kvm")
    if arguments.kvm and (arguments.real or (arguments.computes or 1) > 1):
        raise steps.Failed("--kvm goes with one compute host, whose cards are emulated: no --real")
    lab = _lab(arguments)
    if cloud.is_up(lab):
        if (arguments.kvm, arguments.stock) != (lab.kvm, lab.stock):
            raise steps.Failed("the lab is up in another way: run `tools/lab down` first")
        if arguments.computes not in (None, lab.computes):
            raise steps.Failed(
                f"the lab is up with {lab.computes} compute hosts: run `tools/lab down` first"
            )
        steps.say(f"The lab in {lab.folder} is up.")
        return 0
    cloud.up(lab)
    text = _NEXT_STOCK if lab.stock else _NEXT_KVM if lab.kvm else _NEXT
    folder = f" --dir {shlex.quote(arguments.dir)}" if arguments.dir else ""
    status = guide.translated(f"{guide.STATUS} ", guide.CONTROLLER, guide.places(lab)).strip()
    steps.say(text.format(program=f"{sys.argv[0]}{folder}", status=status))
    return 0


def _down(arguments: argparse.Namespace) -> int:
    lab = settings.load(settings.folder(arguments.dir))
    if lab is None:
        steps.say("There is no lab here.")
        return 0
    left = cloud.down(lab)
    steps.say("Looked for processes, mounts, device nodes, domains, control groups, loop devices")
    steps.say("and the user: " + ("nothing is left." if not left else "LEFT:"))
    for leftover in left:
        steps.say(f"  {leftover}")
    return 1 if left else 0


def _status(arguments: argparse.Namespace) -> int:
    lab = settings.load(settings.folder(arguments.dir))
    if lab is None:
        steps.say("There is no lab here.")
        return 1
    by_service = lab.ports.by_service()
    listening = ports.listeners(by_service.values())
    names = services.names(lab)
    for name in names:
        pid = process.pid(lab, name)
        port = by_service.get(name)
        state = f"up, process {pid}" if pid else "down"
        if port:
            state += f", port {port}" + ("" if port in listening or not pid else " (not listening)")
        steps.say(f"  {name:15} {state}")
    for line in cloud.found(lab):
        steps.say(f"  {line}")
    return 0 if all(process.pid(lab, name) for name in names) else 1


def _openrc(arguments: argparse.Namespace) -> int:
    lab = _saved(arguments)
    for name, value in lab.credentials(arguments.user).items():
        steps.say(f"export {name}={shlex.quote(value)}")
    steps.say(f"export PATH={shlex.quote(str(lab.venv / 'bin'))}:$PATH")
    return 0


def _compute(arguments: argparse.Namespace) -> int:
    """Run a command on a compute host; only that host has to be on."""
    return controls.enter(compute.named(_saved(arguments), arguments.host), arguments.command)


def _on_host(act: Callable[[settings.Host], int]) -> Callable[[argparse.Namespace], int]:
    return lambda arguments: act(
        compute.named(_running(arguments), arguments.host or arguments.named)
    )


def _demo(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    lab = _lab(arguments)
    if lab.computes > 1:
        raise steps.Failed(
            f"the demo needs a lab with one compute host, and this has {lab.computes}: run "
            "`tools/lab down` first"
        )
    was_up = cloud.is_up(lab)
    try:
        if not was_up:
            steps.say("Bringing the cloud up\n")
            cloud.up(lab, with_gpus=not arguments.debian)
            if arguments.debian:
                steps.say(f"\nnova-gpu, as {guide.DEBIAN.name} has it installed\n")
                guide.follow(lab)
        demo.run(lab)
    finally:
        if was_up or arguments.keep:
            steps.say("\nThe cloud stays up.")
        else:
            steps.say("\nTaking the cloud down\n")
            left = _down(arguments)
    steps.say(f"\nAll as it should be, {time.monotonic() - began:.0f} s in all.")
    return 0 if was_up or arguments.keep else left


def _guide(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    # This check needs no cloud, so it comes before anything is started.
    for page in (*guide.PAGES, *guide.KVM_PAGES, guide.WALK):
        guide.blocks_of(page)
    walk = arguments.walk
    if walk and arguments.kvm:
        raise steps.Failed("--walk goes without --kvm")
    arguments.computes = 1 if arguments.kvm else 2
    lab = _lab(arguments)
    if cloud.found(lab):
        raise steps.Failed("the guide needs a cloud of its own: run `tools/lab down` first")
    try:
        if not walk:
            steps.say("Bringing a cloud up that knows nothing of nova-gpu\n")
        cloud.up(lab, with_gpus=walk, computes=2 if walk else 1)
        guide.run(lab, walk=walk)
    finally:
        if arguments.keep:
            steps.say("\nThe cloud stays up.")
        else:
            steps.say("\nTaking the cloud down\n")
            left = _down(arguments)
    if not arguments.keep and left:
        return left
    steps.say(f"\nAll as the pages say, {time.monotonic() - began:.0f} s in all.")
    return 0


def _upgrade(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    lab = _lab(arguments)
    if cloud.found(lab):
        raise steps.Failed("an upgrade needs a cloud of its own: run `tools/lab down` first")
    try:
        upgrade.run(lab, arguments.former)
    finally:
        steps.say("\nTaking the cloud down\n")
        left = _down(arguments)
    steps.say(f"\nAll as it should be, {time.monotonic() - began:.0f} s in all.")
    return left


def _quota(arguments: argparse.Namespace) -> int:
    limits.show(_running(arguments))
    return 0


def _events(arguments: argparse.Namespace) -> int:
    notifications.watch(_running(arguments))
    return 0


def _running(arguments: argparse.Namespace) -> settings.Lab:
    lab = settings.load(settings.folder(arguments.dir))
    if lab is None or not cloud.is_up(lab):
        raise steps.Failed("the lab is not up: run `tools/lab up`")
    return lab


def _saved(arguments: argparse.Namespace) -> settings.Lab:
    """Return the lab, up or not."""
    folder = settings.folder(arguments.dir)
    lab = settings.load(folder)
    if lab is None:
        raise steps.Failed(f"there is no lab in {folder}: run `tools/lab up` first")
    return lab


def _lab(arguments: argparse.Namespace) -> settings.Lab:
    """Return the lab, with the settings of the command line unless it is up."""
    path = settings.folder(arguments.dir)
    lab = settings.load(path)
    if lab is not None and cloud.is_up(lab):
        return lab
    try:
        return settings.save(
            path,
            arguments.port_base,
            arguments.real,
            arguments.computes or 1,
            debian=getattr(arguments, "debian", False),
            kvm=getattr(arguments, "kvm", False),
            stock=getattr(arguments, "stock", False),
        )
    except ValueError as error:
        raise steps.Failed(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/lab",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", help="the lab's folder; user nova must be able to reach it")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    shows = verb("demo", _demo, "bring the cloud up, show what it does, take it down")
    shows.add_argument("--keep", action="store_true", help="leave the cloud up")
    shows.add_argument(
        "--debian",
        action="store_true",
        help="with Debian 13's own OpenStack, which stays installed and configured",
    )
    text = "run the commands of the documentation, from a cloud without nova-gpu on"
    guides = verb("guide", _guide, text)
    guides.add_argument("--keep", action="store_true", help="leave the cloud up")
    text = "the first hour of three new users instead, in a cloud with GPUs"
    guides.add_argument("--walk", action="store_true", help=text)
    # The page shows the output of the pretended host.
    guides.set_defaults(real=False)
    shows.set_defaults(computes=1)
    text = "upgrade a cloud from another revision of this repository, and set it back, under guests"
    upgrades = verb("upgrade", _upgrade, text)
    upgrades.add_argument(
        "former", metavar="REVISION", help="the former release, as a tag or commit of git"
    )
    upgrades.set_defaults(real=False, computes=2)
    ups = verb("up", _up, "bring the cloud up")
    for starts in (shows, guides, upgrades, ups):
        starts.add_argument(
            "--port-base",
            type=int,
            metavar="N",
            help="use the ports from N on, instead of the services' usual ones",
        )
    for starts in (shows, ups):
        starts.add_argument(
            "--real",
            action="store_true",
            help="offer this machine's own GPUs instead of pretended ones",
        )
    for starts in (guides, ups):
        starts.add_argument(
            "--kvm",
            action="store_true",
            help="a compute host in an emulated VM with an IOMMU and cards, for guests of KVM",
        )
    ups.add_argument(
        "--stock",
        action="store_true",
        help="begin with Nova's own driver there, and cards by an alias: to try adopt and leave",
    )
    text = "compute hosts, each with GPUs of its own (default: 1)"
    ups.add_argument("--computes", type=int, choices=(1, 2), metavar="N", help=text)
    verb("down", _down, "take the cloud away and look for anything left behind")
    verb("status", _status, "what runs, and what is on the machine because of the lab")
    text = "run a command, or a shell, on a compute host: its libvirt, its /etc/nova"
    enters = verb("compute", _compute, text)
    enters.add_argument("--host", help="compute-1 (default) or compute-2")
    enters.add_argument("command", nargs="*", metavar="-- COMMAND")
    for name, act, text in (
        ("stop-compute", controls.stop, "end nova-compute, wait until the API has it as down"),
        ("start-compute", controls.start, "start it again, wait until it is up"),
        (
            "power-off",
            controls.power_off,
            "cut a compute host's power: its guests end, and nova-compute",
        ),
        ("power-on", controls.power_on, "switch it on again, wait until it is up"),
    ):
        where = verb(name, _on_host(act), text).add_mutually_exclusive_group()
        where.add_argument("named", nargs="?", metavar="HOST", help="compute-1 (default) or -2")
        where.add_argument("--host", help="the same")
    opens = verb("openrc", _openrc, "print the environment for openstack and nova")
    users = (settings.ADMIN, settings.MEMBER)
    opens.add_argument("user", nargs="?", choices=users, default=settings.ADMIN)
    verb("quota", _quota, "limit GPUs in Keystone, show what counts and what there is room for")
    verb("events", _events, "print the notifications about GPUs as they come")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # With these variables of tools/test Python and pip would take the checkout for the installed
    # project.
    os.environ.pop("PYTHONPATH", None)
    # SIGTERM must not skip the end of the run, which takes the cloud down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if os.geteuid() != 0:
            raise steps.Failed("the lab needs root: it makes mounts, device nodes and containers")
        return int(arguments.run(arguments))
    except steps.Failed as error:
        print(f"\ntools/lab: {error}", file=sys.stderr, flush=True)
        steps.say(f"\nAll logs are in {settings.folder(arguments.dir) / 'log'}")
        steps.say("`tools/lab down` removes what is still up.")
    except KeyboardInterrupt:
        steps.say("\ninterrupted: `tools/lab down` removes what was started")
    return 1
