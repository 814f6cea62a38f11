# SPDX-License-Identifier: Apache-2.0
"""What :mod:`tools.coverage` measures in a VM.

``python -m tools.vfiolab.measured MODULE [ARGUMENT ...]``, there, is the module as it would be run
without this: the Python of a VM that was saved had started before it could be measured.
"""

from __future__ import annotations

import pathlib
import runpy
import shutil
import sys
from collections.abc import Mapping, Sequence

from tools import measuring

_OUT = pathlib.Path("/out")
_SETTINGS = "coveragerc"


def begin(out: pathlib.Path) -> Mapping[str, str]:
    """What the environment of a command has in addition. *out* is the VM's /out."""
    if measuring.folder() is None:
        return {}
    data, files = _OUT / measuring.DATA, f"include = /project/{measuring.PACKAGE}/*"
    (out / _SETTINGS).write_text(measuring.config(data, files))
    return {measuring.START: str(_OUT / _SETTINGS)}


def module(words: Sequence[str]) -> Sequence[str]:
    """A module and its arguments, as a VM that was saved is to run them"""
    return words if measuring.folder() is None else [__spec__.name, *words]


def gather(out: pathlib.Path) -> None:
    """Puts what the VM has written to what this machine's processes have."""
    if target := measuring.folder():
        for file in out.glob(f"{measuring.DATA}.*"):
            shutil.move(file, target)


if __name__ == "__main__":
    import coverage

    coverage.process_startup()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
