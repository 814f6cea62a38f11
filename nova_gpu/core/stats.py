# SPDX-License-Identifier: Apache-2.0
"""What a host says of its GPUs in ComputeNode.stats, as one string of JSON.

::

    {"v": 1, "hypervisor": "LXC", "groups": [{"provider": "host1_gpu_10de_1091_lxc",
     "product": "10de:1091", "architecture": "fermi", "mode": "lxc", "total": 8}]}

It is static: what there is, not what is free. ``architecture`` is null where it is not known.
"""

from __future__ import annotations

import dataclasses
import json

from nova_gpu.core import exception

VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class GroupStats:
    """Two groups are equal that offer the same, on whatever host."""

    provider: str = dataclasses.field(compare=False)
    product: str
    architecture: str | None
    mode: str
    total: int

    def __post_init__(self) -> None:
        texts = (self.provider, self.product, self.mode)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("provider, product and mode must be strings")
        if not isinstance(self.architecture, str | None):
            raise TypeError("architecture must be a string or null")
        if not isinstance(self.total, int) or isinstance(self.total, bool) or self.total < 0:
            raise ValueError("total must be a whole number")


@dataclasses.dataclass(frozen=True, slots=True)
class HostStats:
    hypervisor: str
    groups: tuple[GroupStats, ...]


def dumps(stats: HostStats) -> str:
    return json.dumps({"v": VERSION} | dataclasses.asdict(stats))


def loads(text: str) -> HostStats:
    """:raises InvalidStats: where *text* is not what :func:`dumps` of this version writes"""
    try:
        fields = json.loads(text)
        if fields["v"] != VERSION:
            raise ValueError(f"version {fields['v']!r} is not {VERSION}")
        if not isinstance(fields["hypervisor"], str):
            raise TypeError("hypervisor must be a string")
        groups = tuple(GroupStats(**group) for group in fields["groups"])
        return HostStats(hypervisor=fields["hypervisor"], groups=groups)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise exception.InvalidStats(text, f"{type(e).__name__}: {e}") from e
