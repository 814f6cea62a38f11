# SPDX-License-Identifier: Apache-2.0
"""Conditions on a name, ``s== fermi`` or ``<or> LXC <or> QEMU``, and on a number, ``>= 40960``.

The spelling is that of Nova's ComputeCapabilitiesFilter (``extra_specs_ops``), limited to the
operators that make sense for a name or for a number. That filter skips what it cannot read; this
module reads a condition completely or refuses it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from nova_gpu.core import exception, names


class Stated(Protocol):
    """A condition that a flavor states: a :class:`Condition` or a :class:`Quantity`."""

    def matches(self, value: str | None) -> bool: ...

    @property
    def equal_to(self) -> str | None: ...


class Operator(enum.StrEnum):
    EQUAL = "s=="
    NOT_EQUAL = "s!="
    IN = "<in>"
    OR = "<or>"


ALLOWED_NAMES = "NAME, 's== NAME', 's!= NAME', '<in> PART' or '<or> NAME <or> NAME'"

_NUMERIC = frozenset({"=", "==", "!=", ">=", "<="})
_ORDERINGS = frozenset({"s<", "s<=", "s>", "s>="})
_ALL_IN = "<all-in>"
_OPERATORS = _NUMERIC | _ORDERINGS | {_ALL_IN} | set(Operator)

_NAME = re.compile(r"[A-Za-z0-9]+(?:[._+-]+[A-Za-z0-9]+)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a name.

    ``values`` are its operands in the form of :func:`names.word`. ``stated`` are the operands as
    messages show them: the spelling of the flavor, and where that is a synonym the name that it
    stands for, as in ``kvm (qemu)``. Two spellings of one condition are equal: a bare name is
    ``s==``, and so is ``<or>`` with one name.
    """

    operator: Operator
    values: frozenset[str]
    stated: tuple[str, ...] = dataclasses.field(compare=False)

    def matches(self, value: str | None) -> bool:
        """Return whether *value* satisfies the condition.

        An unknown value satisfies no condition, not even ``s!=``.
        """
        word = names.word(value)
        if word is None:
            return False
        match self.operator:
            case Operator.EQUAL | Operator.OR:
                return word in self.values
            case Operator.NOT_EQUAL:
                return word not in self.values
            case Operator.IN:
                return all(part in word for part in self.values)

    @property
    def equal_to(self) -> str | None:
        """The only name that satisfies the condition, ``None`` if several names may."""
        return next(iter(self.values)) if self.operator is Operator.EQUAL else None

    def __str__(self) -> str:
        if self.operator is Operator.EQUAL:
            return self.stated[0]
        return " ".join(f"{self.operator} {value}" for value in self.stated)


def parse_name(
    key: str, text: str, synonyms: Mapping[str, str] | None = None, *, spaces: bool = False
) -> Condition:
    """Parse the condition on a name that the extra spec *key* states as *text*.

    :param synonyms: names that mean another one, both in the form of :func:`names.word`
    :param spaces: whether a name may consist of several words
    """
    try:
        operator, written = _split(_joined(text.split()) if spaces else text.split())
        words = sorted({_value(name) for name in written})
    except ValueError as e:
        raise exception.InvalidExtraSpec(key, text, str(e), ALLOWED_NAMES) from None
    meaning = {word: (synonyms or {}).get(word, word) for word in words}
    values = frozenset(meaning.values())
    if operator is Operator.OR and len(values) == 1:
        operator = Operator.EQUAL
    stated = (word if word == meaning[word] else f"{word} ({meaning[word]})" for word in words)
    return Condition(operator, values, tuple(stated))


def check_syntax(key: str, text: str) -> None:
    """Refuse a value that ComputeCapabilitiesFilter cannot evaluate.

    This is the only check of an extra spec that flavors for other drivers have too.

    :raises InvalidExtraSpec: for an operator without its operand, and for numeric operators, with
        which that filter fails on every host as soon as it compares a name
    """
    try:
        _check(text.split())
    except ValueError as e:
        raise exception.InvalidExtraSpec(key, text, str(e), ALLOWED_NAMES) from None


def _check(words: Sequence[str]) -> None:
    """Refuse words that are no condition for ComputeCapabilitiesFilter, and hence none here."""
    if not words:
        raise ValueError("it is empty")
    if words[0] in _NUMERIC:
        raise ValueError(f"{words[0]!r} compares numbers, but this is a name")
    if words[0] in _OPERATORS and len(words) == 1:
        raise ValueError(f"{words[0]!r} needs a name after it")
    if words[0] == Operator.OR and (
        len(words) % 2 or any(word != Operator.OR for word in words[::2])
    ):
        raise ValueError("there must be an '<or>' before every name")


def _split(words: Sequence[str]) -> tuple[Operator, Sequence[str]]:
    _check(words)
    first = words[0]
    if first in _ORDERINGS:
        raise ValueError(f"{first!r} needs an order, but names are not ordered")
    if first == _ALL_IN:
        raise ValueError(f"{first!r} needs a list, but this is one name")
    if first == Operator.OR:
        return Operator.OR, words[1::2]
    operator, stated = (
        (Operator(first), words[1:]) if first in _OPERATORS else (Operator.EQUAL, words)
    )
    if len(stated) != 1:
        raise ValueError("there must be one name")
    return operator, stated


def _joined(words: Sequence[str]) -> Sequence[str]:
    """Join successive words that are no operators to one name: ``H200 SXM`` is ``h200_sxm``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] not in _OPERATORS and word not in _OPERATORS:
            joined[-1] += f"_{names.word(word) or word}"
        else:
            joined.append(word if word in _OPERATORS else names.word(word) or word)
    return joined


def _value(name: str) -> str:
    """Return a name in a flavor's condition in the form of :func:`names.word`."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name: letters, digits and . _ + - between them")
    value = names.word(name)
    if value is None:
        raise ValueError(f"{name!r} cannot be asked for: an unknown value meets no condition")
    return value


class Comparison(enum.StrEnum):
    AT_LEAST = ">="
    EQUAL = "=="
    AT_MOST = "<="


ALLOWED_NUMBERS = "N, '>= N' or '= N' (at least), '== N' or '<= N'"

_COMPARISONS = {"=": Comparison.AT_LEAST} | {
    comparison.value: comparison for comparison in Comparison
}


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """A condition on a number, such as MiB of memory.

    A bare number means at least, as ``=`` does: 80 GiB serve a request for 40960 MiB.
    """

    operator: Comparison
    value: int

    def matches(self, value: str | int | None) -> bool:
        """Return whether *value* satisfies the condition.

        An unknown value, or one that is not a number, never does.
        """
        if value is None or not str(value).isdecimal():
            return False
        match self.operator:
            case Comparison.AT_LEAST:
                return int(value) >= self.value
            case Comparison.EQUAL:
                return int(value) == self.value
            case Comparison.AT_MOST:
                return int(value) <= self.value

    @property
    def equal_to(self) -> str | None:
        """The only number that satisfies the condition, ``None`` if several numbers may."""
        return str(self.value) if self.operator is Comparison.EQUAL else None

    def __str__(self) -> str:
        return f"{self.operator} {self.value}"


def parse_number(key: str, text: str) -> Quantity:
    """Parse the condition on a number that the extra spec *key* states as *text*."""

    def refused(reason: str) -> exception.InvalidExtraSpec:
        unit = ", in MiB" if key.endswith("_mib") else ""
        return exception.InvalidExtraSpec(key, text, reason, f"{ALLOWED_NUMBERS}{unit}")

    # ">=40960" is what most people write.
    match = re.fullmatch(r"\s*([^\s0-9]*)\s*(\S*)\s*", text)
    if match is None:
        raise refused("there must be one number")
    operator = _COMPARISONS.get(match[1] or ">=")
    if operator is None:
        raise refused(f"{match[1]!r} is not an operator for a number")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", match[2]):
        raise refused(f"{match[2]!r} is not a whole number above 0")
    return Quantity(operator, int(match[2]))
