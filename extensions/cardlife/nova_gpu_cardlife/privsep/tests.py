# SPDX-License-Identifier: Apache-2.0
"""Processes that test cards, started and read by privileged functions.

A test takes up to hours, so no thread of the privileged process waits for it. coreutils' timeout
kills it in time even after nova-compute has ended. Until then it keeps a socket, by which the next
service finds that a test of the card still runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
from typing import IO

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode, PciAddress
from nova_gpu.host import child_process, clean_command
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu_cardlife.core import verdict
from nova_gpu_cardlife.core.verdict import Outcome
from nova_gpu_cardlife.options import BUS, DCGMI

_OPTION = "card_test"
_LIST_TIMEOUT_S = 5.0
_ENDED = "the process that ran it has ended"
# Of each file that a test writes, also of what it prints, in bytes: a test must not fill the disk.
_LARGEST = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Test:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    level: int | None
    gpu: int


# Of this process, which is the privileged one; by address
_tests: dict[str, _Test] = {}


def command() -> list[str]:
    """Return the words of ``[gpu]card_test``, with the path of dcgmi; empty without a program.

    :raises InvalidOption: if it is no program that only root can change, or no level of dcgmi, or
        has more than bus
    """
    first, *others = CONF.gpu.card_test
    if first == BUS:
        if others:
            reason, remedy = "bus has no arguments", "remove the other values, or bus"
            raise exception.InvalidOption(_OPTION, " ".join(CONF.gpu.card_test), reason, remedy)
        return []
    if first == DCGMI:
        if others not in (["1"], ["2"], ["3"], ["4"]):
            reason, remedy = "it has no level", "set it once to dcgmi and once to 1, 2, 3 or 4"
            raise exception.InvalidOption(_OPTION, " ".join(CONF.gpu.card_test), reason, remedy)
        first = shutil.which(DCGMI, path=clean_command.PATH) or "/usr/bin/dcgmi"
    clean_command.check([first], option=_OPTION)
    return [first, *others]


@nova_gpu.privsep.entrypoint.entrypoint
def load() -> None:
    """Do nothing; the call imports this module in the privileged process."""


@nova_gpu.privsep.entrypoint.entrypoint
def begin(address: str) -> None:
    """Begin the test of a card.

    :raises DeviceUnavailable: if there is no such card, or an earlier test of it still runs
    :raises InvalidOption: as :func:`command` does
    :raises Failed: if it cannot be started
    """
    card = privileged_cards.card(PciAddress.parse(address), CONF.gpu)
    if card is None:
        reason, remedy = privileged_cards.REASON, privileged_cards.REMEDY
        raise exception.DeviceUnavailable(address, reason, remedy)
    words = command()
    mode = DeliveryMode.of_whole_cards(NOVAS.libvirt.virt_type)
    environment = clean_command.environment(card, mode)
    level, gpu = None, 0
    if CONF.gpu.card_test[0] == DCGMI:
        argv = [words[0], "discovery", "-l"]
        _, listed = child_process.status_and_output(argv, _LIST_TIMEOUT_S, environment)
        number = verdict.dcgm_gpu(os.fsdecode(listed), card.address)
        if number is None:
            raise child_process.Failed(f"dcgmi discovery does not list {address}")
        level, gpu = int(words[1]), number
        words = [words[0], "diag", "-r", words[1], "-j", "-i", str(gpu)]
    else:
        words = [*words, address]
    with _lock(address) as lock:
        output = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            process = subprocess.Popen(
                [
                    *("prlimit", f"--fsize={_LARGEST}"),
                    *("timeout", "--signal=KILL", str(CONF.gpu.card_test_timeout), *words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        except OSError as error:
            output.close()
            raise child_process.Failed(f"cannot be started: {error}") from error
    _tests[address] = _Test(process, output, level, gpu)


def _lock(address: str) -> socket.socket:
    """Return a socket that only one process and its children can have for a card of this host."""
    sysfs = os.fsencode(pathlib.Path(Roots.of(CONF.gpu).sysfs).resolve())
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0nova-gpu-test {hashlib.sha256(sysfs).hexdigest()} {address}")
    except OSError as error:
        lock.close()
        reason = f"an earlier test of it still runs ({error.strerror})"
        raise exception.DeviceUnavailable(address, reason, "wait until it ends") from error
    return lock


@nova_gpu.privsep.entrypoint.entrypoint
def outcome(address: str) -> tuple[str, str, str, str | None] | None:
    """Return verdict, text, output and the step asked for, ``None`` while the test runs."""
    test = _tests.get(address)
    if test is None:
        return verdict.Verdict.UNKNOWN.value, _ENDED, "", None
    pid = test.process.pid
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    # Before its number is given to another process: what it left running in its group
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    status = test.process.wait()
    del _tests[address]
    with test.output as file:
        file.seek(0)
        text = file.read(files.LARGEST).decode(errors="replace")
    ended = _judged(test, status, text)
    return ended.verdict.value, ended.text, text, ended.asks.value if ended.asks else None


def _judged(test: _Test, status: int, text: str) -> Outcome:
    if abs(status) in (signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return verdict.unknown(f"it printed, or wrote to a file, more than {_LARGEST >> 20} MiB")
    if status < 0 or status == 128 + signal.SIGKILL:
        seconds = CONF.gpu.card_test_timeout
        return verdict.unknown(f"it was killed; it may take {seconds} s ([gpu]card_test_timeout)")
    if test.level is None:
        return verdict.of_program(status, text)
    return verdict.of_dcgm(status, text, test.gpu, test.level)
