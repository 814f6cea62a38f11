# SPDX-License-Identifier: Apache-2.0
"""Programs of the operator about a card, which run as root.

``[gpu]clean_command`` cleans it between two guests, ``[gpu]divide_command`` sets how it is divided.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Iterator, Sequence

from nova_gpu.core import exception, names
from nova_gpu.core.model import GPU, DeliveryMode
from nova_gpu.core.vgpu.vgpu import Slot, of_slot
from nova_gpu.host import child_process
from nova_gpu.host.state import files

_OPTION = "clean_command"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT_UID = 0


def check(
    command: Sequence[str], root: pathlib.Path = pathlib.Path("/"), option: str = _OPTION
) -> None:
    """Refuse a command whose program users other than root can change.

    The program and all folders above it are checked, both on the configured path and, if it has
    symbolic links, on the path they lead to.

    :raises InvalidOption: if *command* must not be run
    """
    program = pathlib.Path(command[0])
    try:
        reason = _distrust(program, root)
    except OSError as error:
        reason = f"{error.filename or program}: {error.strerror}"
    if reason:
        remedy = "its first value must be the absolute path of a program that only root can change"
        raise exception.InvalidOption(option, " ".join(command), reason, remedy)


def _distrust(program: pathlib.Path, root: pathlib.Path) -> str | None:
    if not program.is_absolute():
        return "it is not an absolute path"
    mode = program.stat().st_mode
    if not stat.S_ISREG(mode) or not mode & stat.S_IXUSR:
        return f"{program} is not a program"
    for path in _passed(program, root):
        if reason := files.distrust(path.stat(), _ROOT_UID):
            return f"{path}: {reason}"
    return None


def _passed(program: pathlib.Path, root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the program and the folders above it, also of the path without links."""
    for path in dict.fromkeys((program, program.resolve(strict=True))):
        yield from (parent for parent in (path, *path.parents) if parent.is_relative_to(root))


def run(
    command: Sequence[str],
    card: GPU,
    mode: DeliveryMode,
    timeout_s: float,
    root: pathlib.Path = pathlib.Path("/"),
    slot: Slot | None = None,
    option: str = _OPTION,
) -> tuple[int, str]:
    """Run the command for *card*, or for its MIG instance at *slot*; return its status and output.

    :raises InvalidOption: if users other than root can change the program, as :func:`check`
    :raises Failed: if it cannot be started
    :raises TimedOut: if it does not end in time
    """
    check(command, root, option)
    variables = environment(card, mode)
    if slot is not None:
        variables[names.CLEAN_MIG_INSTANCE] = "/".join(map(str, of_slot(slot.number)))
    status, output = child_process.status_and_output(command, timeout_s, variables)
    return status, os.fsdecode(output)


def environment(card: GPU, mode: DeliveryMode) -> dict[str, str]:
    """Return the environment of a program about *card*, with nothing that a tenant has chosen."""
    return {
        "PATH": PATH,
        "LC_ALL": "C.UTF-8",
        names.CLEAN_ADDRESS: str(card.address),
        names.CLEAN_MODE: str(mode),
        names.CLEAN_PRODUCT: card.product.key,
    }
