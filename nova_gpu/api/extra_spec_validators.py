# SPDX-License-Identifier: Apache-2.0
"""nova-gpu's extra specs as nova-api validates them, from microversion 2.86 on.

Nova loads this module in nova-api through the entry point group ``nova.api.extra_spec_validators``
and calls :func:`register`. The scheduler's own parsers check each value, so that the scheduler
understands every value that the API accepts. The descriptions are reStructuredText, as Nova's own
are: the reference shows them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base

from nova_gpu.core import exception
from nova_gpu.core.flavor import gpu_extra_specs


@dataclasses.dataclass
class WordValidator(base.ExtraSpecValidator):  # type: ignore[misc]
    """A validator of one extra spec.

    ``judge`` is called with its name and value, and raises InvalidExtraSpec for an invalid value.
    """

    judge: Callable[[str, str], object] = lambda name, value: None

    def validate(self, name: str, value: str) -> None:
        try:
            self.judge(name, value)
        except exception.InvalidExtraSpec as e:
            raise nova_exception.ValidationError(f"Validation failed; {e}") from e


def register() -> Sequence[base.ExtraSpecValidator]:
    return [
        WordValidator(
            name=word.name,
            description=word.meaning,
            value={"type": str, "description": word.allowed},
            judge=word.judge or word.parse,
        )
        for word in gpu_extra_specs.WORDS
    ]
