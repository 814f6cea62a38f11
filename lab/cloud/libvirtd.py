# SPDX-License-Identifier: Apache-2.0
"""A libvirtd with its own /dev, /run, /var/lib/libvirt and /etc/libvirt in a mount namespace.

    with PrivateLibvirtd(folder, nodes.machine() + nodes.pretend_nvidia()) as lv:
        subprocess.run(lv.enter(["virsh", "-c", "lxc:///", "list"]))

The machine's /dev and its own libvirtd are not touched, and several private ones can run at once. A
program that mounts a guest's disk must run in the namespace too (:meth:`PrivateLibvirtd.enter`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence

from lab.cloud import cgroups, leftovers, libvirtd_log, nodes

URI = "lxc:///"
# A libvirtd that cannot start ends by itself; on a busy machine a start is slow.
_START_TIMEOUT_S = 600.0
# Replaced in the namespace by folders of ours. The whole /run: it also has the sockets of D-Bus,
# and if systemd-machined answered there, guests would become units of the machine.
_COVERED = {
    "run": "/run",
    "lib": "/var/lib/libvirt",
    "cache": "/var/cache/libvirt",
    "log": "/var/log/libvirt",
    "etc": "/etc/libvirt",
}
_KEPT = ("lib", "log", "etc")


class LibvirtdFailed(Exception):
    """The error that a libvirtd did not start, or does not answer; why, and where its log is."""


@dataclasses.dataclass
class PrivateLibvirtd:
    """A libvirtd in a mount namespace of its own.

    Its state is in the folder ``libvirt`` below ``folder``. ``nodes`` are the device nodes of its
    /dev. Members of the group ``socket_group`` and root may connect. ``covers`` are paths in the
    namespace with the file or folder that is mounted there. ``hostname`` is ``None`` for that of
    the machine.
    """

    folder: pathlib.Path
    nodes: Sequence[nodes.Node]
    socket_group: str | None = None
    covers: Mapping[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    hostname: str | None = None

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self._state = self.folder / "libvirt"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> pathlib.Path:
        return self._state / "libvirtd.log"

    @property
    def tag(self) -> str:
        return leftovers.tag(self.folder)

    @property
    def pid(self) -> int:
        """The pid of the running libvirtd, even if another process started it."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._state / "run/libvirtd.pid").read_text())
            if leftovers.is_alive(pid) and leftovers.belongs(pid, self.tag):
                return pid
        raise LibvirtdFailed(f"no libvirtd runs in {self.folder}: start it first")

    def log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def enter(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs *argv* in libvirtd's mount namespace, with its hostname."""
        return ["nsenter", f"--target={self.pid}", *self._namespaces(), "--", *argv]

    def _namespaces(self) -> list[str]:
        return ["--mount", "--uts"] if self.hostname else ["--mount"]

    def virsh(self, *words: str) -> str:
        """Run virsh with the arguments *words*, and return its output."""
        argv = self.enter(["virsh", "--quiet", "--connect", URI, *words])
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def domains(self) -> list[str]:
        """Return the names of all domains, running or only defined."""
        return self.virsh("list", "--all", "--name").split()

    def start(self, again: bool = False) -> None:
        """Start libvirtd, after removing what a killed run left in this folder.

        :param again: whether it keeps the domains that it had before, as a host that was off
        :raises lab.cloud.cgroups.Unservable: if this machine cannot run LXC guests
        """
        layout = cgroups.detect(pathlib.Path("/proc/self/mountinfo").read_text())
        leftovers.clear(self.folder)
        for name, path in _COVERED.items():
            if not again or name not in _KEPT:
                shutil.rmtree(self._state / name, ignore_errors=True)
            for folder in (self._state / name, pathlib.Path(path)):
                folder.mkdir(parents=True, exist_ok=True)
        self._configure()
        environment = {**os.environ, leftovers.ENVIRONMENT: self.tag}
        script = "\n".join(self._script(layout))
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                ["unshare", *self._namespaces(), "--propagation=private", "sh", "-euc", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._wait()

    def stop(self) -> list[str]:
        """End guests, libvirtd and all other processes in its namespaces.

        Return texts about what remains on the machine.
        """
        with contextlib.suppress(LibvirtdFailed, subprocess.CalledProcessError):
            for domain in self.virsh("list", "--name").split():
                self.virsh("destroy", domain)
        leftovers.clear(self.folder)
        if self._child is not None:
            self._child.wait()
            self._child = None
        return self.leftovers()

    def leftovers(self) -> list[str]:
        """Return texts about its processes, mounts, loop devices, domains and control groups."""
        domains: list[str] = []
        with contextlib.suppress(LibvirtdFailed, subprocess.CalledProcessError):
            domains = [f"domain {name}" for name in self.domains()]
        return domains + leftovers.found(self.folder)

    def __enter__(self) -> PrivateLibvirtd:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _configure(self) -> None:
        group = [f'unix_sock_group = "{self.socket_group}"'] if self.socket_group else []
        lines = [
            *group,
            'unix_sock_rw_perms = "0770"',
            'auth_unix_ro = "none"',
            'auth_unix_rw = "none"',
            # Without it libvirt takes the firmware's uuid, or a random one at each start.
            f'host_uuid = "{uuid.uuid5(uuid.NAMESPACE_URL, self.tag)}"',
            'log_outputs = "2:stderr"',
        ]
        (self._state / "libvirtd.conf").write_text("\n".join(lines) + "\n")
        # Without a security driver AppArmor's profiles need not know this folder.
        (self._state / "etc/lxc.conf").write_text('security_driver = "none"\n')

    def _script(self, layout: cgroups.Layout) -> Iterable[str]:
        """Yield the lines of a shell script that prepares the namespace and becomes libvirtd."""
        quoted = shlex.quote
        if self.hostname:
            yield f"hostname {quoted(self.hostname)}"
        if layout is cgroups.Layout.HYBRID:
            # libvirt's virCgroupV2BindMount cannot make a folder on the tmpfs of the v1 mounts.
            for mount in cgroups.mounts(pathlib.Path("/proc/self/mountinfo").read_text()):
                if mount.type == "cgroup2":
                    yield f"umount {quoted(str(mount.target))}"
        dev = self._state / "dev"
        yield f"mkdir -p {quoted(str(dev))} && cd {quoted(str(dev))}"
        yield f"mount -t tmpfs -o mode=0755,size=1m {self.tag} . && cd {quoted(str(dev))}"
        yield "mkdir pts shm mqueue"
        yield "mount --bind /dev/pts pts"
        yield f"mount -t tmpfs -o mode=1777 {self.tag} shm"
        yield "ln -s /proc/self/fd fd && ln -s fd/0 stdin && ln -s fd/1 stdout && ln -s fd/2 stderr"
        for node in self.nodes:
            name = quoted(node.name)
            yield f"mkdir -p $(dirname {name})"
            yield f"mknod -m {node.mode:04o} {name} {node.kind} {node.major} {node.minor}"
        yield f"cd / && mount --move {quoted(str(dev))} /dev"
        covers = {path: self._state / name for name, path in _COVERED.items()}
        for path, folder in {**covers, **self.covers}.items():
            yield f"mount --bind {quoted(str(folder))} {quoted(path)}"
        # Mounts are shared among processes in the namespace, as with systemd on a host: otherwise
        # every guest's controller would keep the disks mounted that existed when it started.
        yield "mount --make-rshared /"
        conf, pid_file = self._state / "libvirtd.conf", self._state / "run/libvirtd.pid"
        yield f"exec libvirtd --config {quoted(str(conf))} --pid-file {quoted(str(pid_file))}"

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        reason = f"does not answer after {_START_TIMEOUT_S:.0f} s"
        while time.monotonic() < deadline:
            if self._child is not None and self._child.poll() is not None:
                reason = f"ended with status {self._child.returncode}"
                break
            when = time.monotonic()
            with contextlib.suppress(LibvirtdFailed, subprocess.CalledProcessError):
                self.virsh("version")
                return
            # The polling process must leave the processor to libvirtd.
            time.sleep(max(0.1, time.monotonic() - when))
        meaning = libvirtd_log.reason(self.log.read_text(errors="replace"))
        raise LibvirtdFailed(f"libvirtd {reason}: {meaning} (log: {self.log})")
