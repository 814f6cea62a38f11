# SPDX-License-Identifier: Apache-2.0
"""Names that a flavor's words can have: one that no GPU has is mostly a slip of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping

from osc_lib import exceptions

from nova_gpu import data
from nova_gpu.core import names
from nova_gpu.core.flavor import condition, words

# As Nova calls them, and what a flavor may write for QEMU.
_HYPERVISORS = ("kvm", "lxc", "qemu")


def refuse_unknown(specs: Mapping[str, str], known_traits: Callable[[], Collection[str]]) -> None:
    """Refuses an architecture that neither the table of products nor a host has, and a hypervisor
    that no host with GPUs can have.

    :param specs: those that can be read
    :param known_traits: asked only where the table has not all
    :raises CommandError: with what is meant, where that can be guessed
    """
    hypervisor = words.parse_hypervisor(specs)
    if unknown := _unknown(hypervisor, _HYPERVISORS):
        raise _refused("--hypervisor", unknown, "no hypervisor of hosts with GPUs", _HYPERVISORS)
    architecture = words.parse_architecture(specs)
    known = {names.word(each) or "" for _, _, each, _ in data.products()} - {""}
    if _unknown(architecture, known):
        known |= names.known_values(names.TRAIT_ARCHITECTURE, known_traits())
    if unknown := _unknown(architecture, known):
        what = "an architecture of no product that is known, and of no host's GPUs"
        raise _refused("--arch", unknown, what, known, _OF_YOUR_OWN)


_OF_YOUR_OWN = (
    f"; one that only [gpu]product of a host to come will have is given as "
    f"--property {names.GPU_ARCH}=NAME"
)


def _unknown(asked: condition.Condition | None, known: Collection[str]) -> str | None:
    """The first name that is not among *known*, of a condition on whole names"""
    if asked is None or asked.operator is condition.Operator.IN:
        return None
    return next(iter(sorted(asked.values - set(known))), None)


def _refused(
    option: str, value: str, what: str, known: Collection[str], more: str = ""
) -> exceptions.CommandError:
    alike = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(sorted(known))}"
    return exceptions.CommandError(f"{option} {value} is {what}; {hint}{more}")
