# SPDX-License-Identifier: Apache-2.0
"""How every benchmark shows its figures: as a table, or with ``--json`` one object per row."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Sequence

_HEADER = ("", "ours", "other", "ratio", "unit")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One comparison. A value that is no number says why there is none (``>60 s``)."""

    name: str
    ours: float | str | None
    other: float | str | None
    unit: str

    @property
    def ratio(self) -> float | None:
        """How many times ours the other is, where both were measured"""
        if isinstance(self.ours, str) or isinstance(self.other, str):
            return None
        if not self.ours or self.other is None:
            return None
        return self.other / self.ours

    def as_dict(self) -> dict[str, float | str | None]:
        return {
            "name": self.name,
            "ours": self.ours,
            "other": self.other,
            "ratio": self.ratio,
            "unit": self.unit,
        }


def parser(description: str | None) -> argparse.ArgumentParser:
    """A benchmark's command line, to be added to; its ``json`` is for :func:`show`."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print one JSON object per row")
    return made


def show(rows: Iterable[Row], *, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Prints *rows*; *notes*, which say what is compared, go below the table only."""
    if as_json:
        for row in rows:
            print(json.dumps(row.as_dict()), flush=True)
        return
    cells = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER))]
    for name, *values, unit in cells:
        columns = [f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=False)]
        print("  ".join([f"{name:<{widths[0]}}", *columns, unit]).rstrip())
    for note in notes:
        print(note)


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    ratio = "-" if row.ratio is None else f"{_text(row.ratio)}x"
    return row.name, _text(row.ours), _text(row.other), ratio, row.unit


def _text(value: float | str | None) -> str:
    """Three significant digits, without an exponent"""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
