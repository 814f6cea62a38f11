# SPDX-License-Identifier: Apache-2.0
"""Spares what Nova's tests do anew for each of them and nobody learns from: half of their time.

Each writes the same file of policies, which YAML's parser reads twice, and copies all of Nova's own
with what they are made of. And each makes so many mocks that Python looks through all of Nova for
what may go, again and again.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import types
from typing import Any


def spare() -> None:
    """In this process, from now on"""
    policy: Any = importlib.import_module("oslo_policy.policy")
    read = functools.lru_cache(maxsize=8)(policy.parse_file_contents)
    # Names and texts: whoever changes it changes his own.
    policy.parse_file_contents = lambda data: dict(read(data))
    # Of a rule nothing is changed in place, and what it is copied with is parsed once.
    policy.copy = types.SimpleNamespace(deepcopy=copy.copy)
    gc.set_threshold(100_000, 20, 100)
