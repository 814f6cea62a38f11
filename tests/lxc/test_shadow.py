# SPDX-License-Identifier: Apache-2.0
"""Tests that ``nova-gpu shadow`` (nova_gpu_migrate) only reads: its system calls, what it sends,
and the databases before and after.

NVML is off. Excused are Python's two caches, which any program fills that imports a module for the
first time (``__pycache__``) or looks for plugins (stevedore's ``~/.cache/python-entrypoints``),
/dev/null, and what is gone with the process: pipes, eventfds, sockets. A process that it starts is
traced as well.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator, Sequence

import oslo_messaging
from nova import rpc
from nova.objects import base as objects_base

from lab.cloud import config, leftovers, process, services, settings
from nova_gpu.conf import CONF
from tests.cloud import databases
from tests.cloud import fixtures as cloud_fixtures
from tests.lxc import base, place

_TIMEOUT_S = 300
# strace's name of the calls that have a path or are about sockets, and every other call by which a
# process changes more than itself and its files' offsets
_CHANGING = (
    *("fallocate", "fchmod", "fchown", "fremovexattr", "fsetxattr", "ftruncate", "futimesat"),
    *("copy_file_range", "sendfile", "splice", "tee", "vmsplice", "io_uring_setup"),
    *("pwrite64", "pwritev", "pwritev2", "write", "writev", "ioctl", "flock", "fanotify_init"),
    *("delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load", "bpf"),
    *("fsconfig", "fsmount", "fsopen", "mount_setattr", "move_mount", "open_tree", "setns"),
    *("adjtimex", "clock_adjtime", "clock_settime", "settimeofday", "reboot", "unshare"),
    *("setdomainname", "sethostname", "add_key", "keyctl", "request_key", "open_by_handle_at"),
    *("kill", "pidfd_send_signal", "process_vm_writev", "ptrace", "rt_sigqueueinfo", "tkill"),
    *("mq_open", "msgget", "semget", "shmget", "ioperm", "iopl", "syslog", "quotactl_fd"),
)
_TRACED = ",".join(("%file", "%network", *(f"?{name}" for name in _CHANGING)))
_READING = {
    *("access", "faccessat", "faccessat2", "fstatat64", "getcwd", "getxattr", "lgetxattr"),
    *("lstat", "newfstatat", "readlink", "readlinkat", "stat", "statfs", "statx", "chdir"),
    *("getpeername", "getsockname", "getsockopt", "recvfrom", "recvmmsg", "recvmsg"),
    *("setsockopt", "shutdown", "socket", "socketpair"),
}
_OPENING = {"open", "openat", "openat2"}
_WRITABLE = re.compile(r"\bO_(WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b")
_WRITING = {"write", "writev", "sendto", "sendmsg", "sendmmsg"}
_CACHING = {"mkdir", "mkdirat", "rename", "renameat", "renameat2"}
_OWN = re.compile(r"\d+<(pipe|socket|anon_inode):\[?[^>]*>")
_ASKING = re.compile(r"\d+<[^>]*>+, (FIOCLEX|FIONBIO|FIONREAD|TCGETS2?|TIOCGWINSZ|SIOCGIFNAME)\b")
_PROGRAMS = re.compile(r"(grep|ldconfig|nova-gpu|python[\d.]*|setpriv)$")
_CACHES = re.compile(
    r".*/__pycache__(/[^/]+\.pyc(\.\d+)?)?$|.*/\.cache(/python-entrypoints(/[0-9a-f]+)?)?$"
)
_LINE = re.compile(r"(\w+)\((.*)")
_NO_CALL = ("+++ exited", "--- SIG")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_REQUEST = re.compile(rb"^([A-Z]+ \S+) HTTP/1\.1\r$", re.MULTILINE)
# A message of oslo.messaging is JSON in a string of JSON.
_MESSAGE = b'"oslo.message"'
_ARGUMENT = rb'\\"%b\\": \\"(\w+)\\", '
_CALLED = re.compile(
    (_ARGUMENT % b"method")
    + rb'\\"args\\": \{'
    + (_ARGUMENT % b"objname")
    + (_ARGUMENT % b"objmethod")
)
# What TraceTest runs: a change each, and one by a process that it starts
_PROGRAM = """
import fcntl, os, socket, subprocess
path, mine = "{path}/file", socket.create_connection(("127.0.0.1", {port}))
with open(path, "w") as file:
    file.write("text")
    file.flush()
    os.fchmod(file.fileno(), 0o600)
os.rename(path, path + "s")
mine.sendall(b'GET / "\\0')
subprocess.run(["/bin/rm", path + "s"], check=True)
with open("/etc/passwd") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
"""


@dataclasses.dataclass(frozen=True)
class Call:
    """A system call as strace writes it; with the arguments is what it returned."""

    name: str
    arguments: str

    @property
    def strings(self) -> list[bytes]:
        return [ast.literal_eval(f"b{text}") for text in _STRING.findall(self.arguments)]

    @property
    def socket(self) -> str:
        return self.arguments.partition("<")[2].partition(">")[0]

    def changes(self) -> bool:
        """Return whether it changes anything that is not excused."""
        paths = [os.fsdecode(path) for path in self.strings]
        if self.name in _READING or self.name == "connect":
            return False
        if self.name in _OPENING:
            if not _WRITABLE.search(self.arguments) or paths == ["/dev/null"]:
                return False
        elif self.name in _WRITING:
            target = self.arguments.partition("<")[2].partition(">")[0]
            return not (_OWN.match(self.arguments) or _CACHES.match(target))
        elif self.name == "execve":
            return not _PROGRAMS.search(paths[0])
        elif self.name == "ioctl":
            return not _ASKING.match(self.arguments)
        elif self.name == "bind":
            return not re.search(r"AF_NETLINK|htons\(0\)", self.arguments)
        elif self.name not in _CACHING:
            return True
        return not paths or not all(map(_CACHES.match, paths))


@dataclasses.dataclass(frozen=True)
class Trace:
    """The calls of a command and its processes; ``status`` is its own."""

    calls: Sequence[Call]
    status: int
    output: str
    errors: str

    def changes(self) -> list[str]:
        return [f"{call.name}({call.arguments[:400]})" for call in self.calls if call.changes()]

    def sent(self) -> dict[str, bytes]:
        """Return what was sent to each peer, by its port or path; empty if nothing was."""
        peers: dict[str, str] = {}
        data: dict[str, bytes] = collections.defaultdict(bytes)
        for call in self.calls:
            if call.name == "connect":
                if path := re.search(r'sun_path="([^"]*)"', call.arguments):
                    peers[call.socket] = path[1]
                elif port := re.search(r"_port=htons\((\d+)\)", call.arguments):
                    peers[call.socket] = port[1]
                else:
                    peers[call.socket] = call.arguments
                data[peers[call.socket]] += b""
            elif call.name in _WRITING and call.socket in peers:
                data[peers[call.socket]] += b"".join(call.strings)
            elif (
                call.name in _WRITING
                and call.socket.startswith("socket:")
                and "nlmsg_type=RTM_GET" not in call.arguments  # about network interfaces
            ):
                data["unknown"] += call.arguments.encode()
        return dict(data)


def trace(folder: pathlib.Path, argv: Sequence[str], **variables: str) -> Trace:
    """Run a command under strace, with each thread's calls in a file of its own in *folder*."""
    folder.mkdir()
    strace = ["strace", "-ff", "-y", "-qq", "-s1048576", f"-o{folder}/calls", f"-etrace={_TRACED}"]
    done = subprocess.run(
        [*strace, "--", *argv],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    matches = [_LINE.fullmatch(line) for line in lines if not line.startswith(_NO_CALL)]
    calls = [Call(*match.groups()) for match in matches if match]
    assert len(calls) == len(matches), "a line of strace's is no call"
    return Trace(calls, done.returncode, done.stdout, done.stderr)


def obstacle() -> str | None:
    """Return why nothing can be traced here."""
    if reason := os.environ.get(place.NOT_INSTALLED):
        return reason
    done = subprocess.run(["strace", "-qq", "-o/dev/null", "true"], capture_output=True, text=True)
    return f"strace traces no process here: {done.stderr.strip()}" if done.returncode else None


class TraceTest(unittest.TestCase):
    """A check that changes are seen: otherwise that none is seen would prove nothing."""

    def test_changes_and_what_is_sent(self) -> None:
        if reason := obstacle():
            self.skipTest(reason)
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("", 0)) as server:
            path, port = pathlib.Path(folder), server.getsockname()[1]
            program = _PROGRAM.format(path=path, port=port)
            traced = trace(path / "trace", [sys.executable, "-c", program])
        self.assertEqual(0, traced.status, traced.errors)
        names = [change.partition("(")[0] for change in traced.changes()]
        self.assertEqual(
            ["openat", "write", "fchmod", "rename", "flock", "execve", "unlinkat"], names
        )
        self.assertEqual(b'GET / "\0', traced.sent()[str(port)])


class Broker(settings.Lab):
    """RabbitMQ as the lab starts it, with the user of Debian's package."""

    def user(self, service: str) -> str:
        return service


class ShadowTest(base.LXCTestCase):
    # With user id maps stock Nova's driver fails at a guest's start.
    UID_MAPS = ()

    def setUp(self) -> None:
        if reason := obstacle():
            self.skipTest(reason)
        super().setUp()
        self.boot(self.flavor())
        self._server = self.useFixture(
            cloud_fixtures.PlacementServer(self.placement_fixture.conf_fixture.conf)
        )
        self._placement_url = f"http://127.0.0.1:{self._server.port}"
        self._broker = self._start_broker()
        self._listen()
        self._nova_conf = self._state / "nova.conf"
        self._nova_conf.write_text("\n".join(self._options()) + "\n")
        for name in ("locks", "log", "state"):
            (self._state / name).mkdir()
            (self._state / name).chmod(0o777)

    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.flags(compute_driver="libvirt.LibvirtDriver")

    def test_it_only_reads(self) -> None:
        """Run it by root and by another user, who may read /root, where the checkout may be."""
        capability = "+dac_read_search"
        words = [f"--inh-caps={capability}", f"--ambient-caps={capability}", "--clear-groups"]
        nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", *words, "--"]
        for name, user in (("root", []), ("nobody", nobody)):
            with self.subTest(name):
                self._expect_only_reads(name, user)

    def _expect_only_reads(self, name: str, user: Sequence[str]) -> None:
        before = databases.dump(self, ())
        home = self._state / f"home-{name}"
        home.mkdir()
        home.chmod(0o777)
        self._server.requests.clear()
        program = str(pathlib.Path(sys.executable).with_name("nova-gpu"))
        argv = [sys.executable, program, "--config-file", str(self._nova_conf), "shadow", "--json"]
        traced = trace(
            self._state / f"trace-{name}",
            [*user, *argv],
            HOME=str(home),
            PYTHONPATH=os.environ["PYTHONPATH"],
        )
        self.assertEqual(0, traced.status, traced.output + traced.errors)
        shown = json.loads(traced.output)
        self.assertEqual([], shown["not_read"])
        self.assertEqual([8], [group["total"] for group in shown["groups"]])

        self.assertEqual([], traced.changes())
        self._expect_reads(traced.sent())
        self.assertEqual([], databases.differences(before, databases.dump(self, ())))

    def _expect_reads(self, sent: dict[str, bytes]) -> None:
        placement = sent.pop(str(self._server.port))
        bus = sent.pop(str(self._broker.ports.rabbitmq))
        # Read-only, decided by libvirtd; and an address that the kernel is only asked the way to
        others = {
            peer: data
            for peer, data in sent.items()
            if not peer.endswith(("-sock-ro", "nscd/socket")) and (data or peer.startswith("/"))
        }
        self.assertEqual({}, others)
        requests = [request.decode() for request in _REQUEST.findall(placement)]
        self.assertEqual(self._server.requests, requests)
        self.assertEqual({"GET"}, {request.partition(" ")[0] for request in requests})
        calls = [[word.decode() for word in words] for words in _CALLED.findall(bus)]
        self.assertEqual(bus.count(_MESSAGE), len(calls))
        self.assertEqual({"object_class_action_versions"}, {method for method, _, _ in calls})
        self.assertIn("InstanceList", [name for _, name, _ in calls])
        self.assertEqual([], [call for call in calls if not call[2].startswith("get_")])

    # What the command is connected to

    def _start_broker(self) -> Broker:
        broker = Broker(self._state / "broker", _free_ports(), "secret")
        path = broker.etc / "rabbitmq/rabbitmq.conf"
        for folder in (path.parent, broker.state):
            folder.mkdir(parents=True)
        values = {"rabbitmq_port": str(broker.ports.rabbitmq), "password": broker.password}
        path.write_text(config.render("rabbitmq.conf", values))
        self.addCleanup(leftovers.clear, broker.folder)
        self.addCleanup(process.stop, broker, "rabbitmq")
        services.start_rabbitmq(broker)
        return broker

    def _url(self) -> str:
        return f"rabbit://nova:{self._broker.password}@127.0.0.1:{self._broker.ports.rabbitmq}/"

    def _listen(self) -> None:
        """Let the cloud's conductor answer on RabbitMQ as well."""
        transport = oslo_messaging.get_rpc_transport(
            CONF, self._url(), allowed_remote_exmods=rpc.get_allowed_exmods()
        )
        self.addCleanup(transport.cleanup)
        server = oslo_messaging.get_rpc_server(
            transport,
            oslo_messaging.Target(topic="conductor", server="conductor"),
            [self.conductor.manager],
            executor="threading",
            serializer=rpc.RequestContextSerializer(objects_base.NovaObjectSerializer()),
        )
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def _options(self) -> Iterator[str]:
        """Yield nova-compute's options; some let other commands of OpenStack write files."""
        yield from (
            "[DEFAULT]",
            f"host = {CONF.host}",
            f"transport_url = {self._url()}",
            f"state_path = {self._state}/state",
            f"log_dir = {self._state}/log",
            "use_syslog = true",
            "debug = true",
            "[oslo_messaging_rabbit]",
            "use_queue_manager = true",
            "[oslo_concurrency]",
            f"lock_path = {self._state}/locks",
            "[libvirt]",
            "virt_type = lxc",
            "connection_uri = lxc:///",
            "[gpu]",
            f"sysfs_root = {self._host.roots.sysfs}",
            f"proc_root = {self._host.roots.proc}",
            f"cdi_spec_dirs = {self._state}/cdi",
            "nvml = false",
            "allow_privileged_containers = true",
            "[placement]",
            "auth_type = admin_token",
            f"endpoint = {self._placement_url}",
            f"endpoint_override = {self._placement_url}",
            "token = admin",
        )


def _free_ports() -> settings.Ports:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        rabbitmq, erlang, epmd = (server.getsockname()[1] for server in servers)
        return settings.Ports(rabbitmq=rabbitmq, erlang=erlang, epmd=epmd)
