# SPDX-License-Identifier: Apache-2.0
"""For people, or for programs."""

from __future__ import annotations

import enum
import json
from typing import Any


class Format(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


def add_format(parser: Any) -> None:
    """:param parser: of argparse; what it parses has a ``format``, one of :class:`Format`"""
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--format",
        choices=[str(each) for each in Format],
        default=Format.TABLE,
        help="a table or text for people (the default), or JSON for programs",
    )
    how.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const=Format.JSON,
        help="the same as --format json",
    )


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
