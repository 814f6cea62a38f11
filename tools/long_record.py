# SPDX-License-Identifier: Apache-2.0
"""The page with the last result of each part of the long tier: its table, read and written."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence

from tools.environments import ROOT
from tools.outcomes import Row

PAGE = ROOT / "doc/source/contributor/long.rst"
_HEAD = ("Part", "Commit", "Date", "Passed", "Failed", "Skipped", "Unsteady", "Seconds")
_DIRECTIVE = ".. csv-table::\n"
NEVER = "never run"


def read(page: str) -> dict[str, Sequence[str]]:
    """Return the cells of the table's rows without the part's name, by that."""
    lines = [line.strip() for line in page.partition(_DIRECTIVE)[2].splitlines()]
    cells = csv.reader([line for line in lines if line and not line.startswith(":")])
    return {row[0]: row[1:] for row in cells}


def page(text: str, results: Mapping[str, Sequence[str]], parts: Iterable[str]) -> str:
    """Return the page *text* with a table of these results, a row for each of *parts*."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for part in parts:
        writer.writerow([part, *(results.get(part) or [NEVER, *[""] * (len(_HEAD) - 2)])])
    options = f"   :header: {', '.join(_HEAD)}\n   :align: left\n\n"
    rows = "".join(f"   {line}\n" for line in written.getvalue().splitlines())
    return f"{text.partition(_DIRECTIVE)[0]}{_DIRECTIVE}{options}{rows}"


def write(row: Row, commit: str, parts: Sequence[str]) -> None:
    """Write the result of a part, as of now, to the page."""
    text = PAGE.read_text()
    counts = (row.passed, row.failed, row.skipped, row.unsteady, round(row.seconds))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    result = [commit, today, *map(str, counts)]
    PAGE.write_text(page(text, {**read(text), row.name: result}, parts))
