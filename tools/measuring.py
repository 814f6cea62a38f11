# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run have to know that :mod:`tools.coverage` measures."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = "nova_gpu"
# Where a process that Python starts reads what it is to measure; coverage's own word
START = "COVERAGE_PROCESS_START"
# What they write begins with this.
DATA = "data"


def folder() -> Path | None:
    """Where the processes of this run write to, None where none is measured"""
    settings = os.environ.get(START)
    return Path(settings).parent if settings else None


def config(data: Path, measured: str) -> str:
    """Coverage's settings for processes that write to files which begin with *data*. *measured*: of
    which files"""
    return f"""[run]
branch = true
parallel = true
{measured}
data_file = {data}
sigterm = true
patch = _exit, fork
disable_warnings =
    no-data-collected
    module-not-imported
    module-not-measured
"""
