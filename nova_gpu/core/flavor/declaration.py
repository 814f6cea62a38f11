# SPDX-License-Identifier: Apache-2.0
"""The form in which nova-gpu and its extensions declare extra specs of flavors."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from nova_gpu.core.flavor import parsers
from nova_gpu.core.vgpu.vgpu import VGPUType

Value = TypeVar("Value")


class About(enum.Enum):
    """The subject of an extra spec: the instance, its whole GPUs, its vGPUs, or their product.

    Only a flavor that requests whole GPUs or vGPUs may have an extra spec about them. ``PRODUCT``
    is that of the whole GPUs, or of the vGPUs' cards in a flavor without whole GPUs.
    """

    INSTANCE = enum.auto()
    WHOLE = enum.auto()
    PARTS = enum.auto()
    PRODUCT = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a card or of a vGPU that a :class:`Demand` is compared with.

    ``type`` is ``None`` for a card, and any other value is ``None`` if it is unknown.
    """

    architecture: str | None
    model: str | None
    memory_mib: int | None
    type: VGPUType | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An option of ``openstack gpu flavor create``. Without a ``metavar`` it lists its choices."""

    flag: str
    help: str
    metavar: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ExtraSpec(Generic[Value]):
    """The declaration of an extra spec.

    ``parse`` takes the extra spec's name and its text, and raises InvalidExtraSpec. ``judge``
    replaces ``parse`` in the API's check: of a key that other drivers use too, or of new values.
    ``meaning`` and ``allowed`` are texts for users; ``meaning`` is reStructuredText.

    An extra spec with a ``trait``, a prefix of trait names, is a demand on a provider of GPUs.
    ``fact`` returns the property of a card that the demand is compared with. ``holds`` are two
    texts with which a refusal describes a card: one with that property, and one in which it is
    unknown. ``noun`` replaces ``name`` in a summary.

    ``agree`` and ``suffix`` are of extensions, and called with the extra specs of a flavor that has
    this one. ``agree`` raises InvalidExtraSpec for one that contradicts others; ``suffix`` returns
    what a summary of the flavor says after the GPUs.
    """

    name: str
    meaning: str
    allowed: str
    parse: Callable[[str, str], Value]
    about: About = About.INSTANCE
    choices: Collection[str] = ()
    judge: Callable[[str, str], object] | None = None
    noun: str | None = None
    trait: str = ""
    fact: Callable[[Facts], object] | None = None
    holds: tuple[str, str] | None = None
    option: Option | None = None
    agree: Callable[[Mapping[str, str]], object] | None = None
    suffix: Callable[[Mapping[str, str]], str] | None = None

    def of(self, extra_specs: Mapping[str, str]) -> Value | None:
        """Return the parsed value of this extra spec, ``None`` if the flavor does not set it."""
        text = extra_specs.get(self.name)
        return None if text is None else self.parse(self.name, text)


def choice(
    name: str,
    meaning: str,
    kind: type[parsers.WordT],
    about: About = About.INSTANCE,
    option: Option | None = None,
    *,
    reason: str = "it is not one of the allowed words",
) -> ExtraSpec[parsers.WordT]:
    """Return an extra spec whose allowed values are the members of *kind*."""
    parse = functools.partial(parsers.parse_word, words=kind, reason=reason)
    return ExtraSpec(name, meaning, parsers.allowed(kind), parse, about, tuple(kind), option=option)
