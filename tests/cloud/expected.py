# SPDX-License-Identifier: Apache-2.0
"""Differences that the oracle sees after tests and that are known faults, by name and kind."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping

import yaml

FILE = pathlib.Path(__file__).parents[1] / "expected-differences.yaml"


@functools.cache
def _reasons() -> Mapping[str, Mapping[str, str]]:
    return yaml.safe_load(FILE.read_text()) or {}


def of_test(test_id: str) -> Mapping[str, str]:
    """Return the reasons for a test's differences, by kind: those of its name alone."""
    return _reasons().get(test_id, {})


def kinds(test_id: str) -> frozenset[str]:
    """Return the kinds that are expected after a test: by its name, class, module or package."""
    return frozenset(
        kind
        for name, reasons in _reasons().items()
        if f"{test_id}.".startswith(f"{name}.")
        for kind in reasons
    )
