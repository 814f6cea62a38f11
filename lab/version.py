# SPDX-License-Identifier: Apache-2.0
"""The version of this project that setup.cfg declares."""

from __future__ import annotations

import configparser
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "setup.cfg"


def declared() -> str:
    """Return what the next release is called, in numbers."""
    parser = configparser.ConfigParser()
    parser.read(_FILE)
    return parser["metadata"]["version"]
