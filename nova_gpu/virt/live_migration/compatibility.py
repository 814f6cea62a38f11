# SPDX-License-Identifier: Apache-2.0
"""Comparison of a guest's vGPU at the source of a live migration with the one at the destination.

Each host describes a vGPU in a text::

    nvidia-1155 of 10de:26b9, a virtual function with a type; driver 550.54.16; ECC 1

Older releases write only the text before the first semicolon; facts that are missing are not
compared. Sources: NVIDIA's vGPU user guide, "Migrating a VM Configured with vGPU", requires the
same ECC mode; Red Hat's guide to live migration with an NVIDIA vGPU says that migration fails on
KVM hosts with different driver versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nova_gpu.conf import CONF
from nova_gpu.core import vendors
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import nvml, proc
from nova_gpu.host.roots import Roots

_MODES = {"0": "off", "1": "on"}
_FACTS = re.compile(r"; driver ([0-9.]+)|; ECC ([01])")


def facts_of(cards: Iterable[GPU], roots: Roots) -> Mapping[PciAddress, str]:
    """Return the text with driver version and ECC mode of each NVIDIA card, as in the example.

    Facts that cannot be read are left out.
    """
    addresses = [card.address for card in cards if card.product.vendor_id == vendors.NVIDIA]
    if not addresses:
        return {}
    modes = nvml.modes(addresses, CONF.gpu.nvml_timeout) if CONF.gpu.nvml else {}
    driver = proc.version(roots)
    facts = {}
    for address in addresses:
        ecc = modes[address].ecc if address in modes else None
        facts[address] = f"; driver {driver}" if driver else ""
        facts[address] += "" if ecc is None else f"; ECC {ecc}"
    return facts


def not_alike(has: str | None, gets: str) -> str | None:
    """Return why a guest cannot move from the vGPU *has* to the vGPU *gets*, or ``None``.

    :param has: the source's text about its vGPU (:meth:`Moves.described`), ``None`` if it sent none
    """
    mine, its = (_FACTS.sub("", text or "") for text in (has, gets))
    if has is None or mine != its:
        return f"the guest has {has and mine}, and would get {its}"
    mine_driver, mine_ecc = _read_facts(has)
    its_driver, its_ecc = _read_facts(gets)
    if mine_ecc and its_ecc and mine_ecc != its_ecc:
        return (
            f"its card has ECC {_MODES[mine_ecc]}, and the one that it would get has it "
            f"{_MODES[its_ecc]}; both must be alike (nvidia-smi -e)"
        )
    if mine_driver and its_driver and mine_driver != its_driver:
        return (
            f"its vGPU manager is {mine_driver}, and the one there is {its_driver}, which takes no "
            "state of another version"
        )
    return None


def _read_facts(words: str) -> tuple[str | None, str | None]:
    """Return the driver version and the ECC mode in the text, ``None`` for one that it lacks."""
    matches = [match.groups() for match in _FACTS.finditer(words)]
    return (
        next((driver for driver, _ in matches if driver), None),
        next((ecc for _, ecc in matches if ecc), None),
    )
