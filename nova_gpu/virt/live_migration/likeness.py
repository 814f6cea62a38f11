# SPDX-License-Identifier: Apache-2.0
"""Whether a vGPU can take the state of another, by the words in which two hosts tell what they are.

The words are text, as they go from host to host in a field of Nova's::

    nvidia-1155 of 10de:26b9, a virtual function with a type; driver 550.54.16; ECC 1

What stands behind the first semicolon an older release does not say, and then nothing is known of
it. Source of what must be alike: of ECC, NVIDIA's vGPU user guide, "Migrating a VM Configured with
vGPU"; of the version, Red Hat's guide to live migration with an NVIDIA vGPU: it fails on KVM hosts
where that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import nvml, version
from nova_gpu.host.pci import products
from nova_gpu.host.roots import Roots

_FACTS = re.compile(r"; driver ([0-9.]+)|; ECC ([01])")


def facts(cards: Iterable[GPU], roots: Roots) -> Mapping[PciAddress, str]:
    """What is said of the driver and of each of *cards* behind all else, of NVIDIA's alone."""
    asked = [card.address for card in cards if card.product.vendor_id == products.NVIDIA]
    if not asked:
        return {}
    told = nvml.modes(asked, CONF.gpu.nvml_timeout) if CONF.gpu.nvml else {}
    driver = version.driver(roots)
    said = {}
    for address in asked:
        ecc = told[address].ecc if address in told else None
        said[address] = f"; driver {driver}" if driver else ""
        said[address] += "" if ecc is None else f"; ECC {ecc}"
    return said


def mismatch(has: str | None, gets: str) -> str | None:
    """Why a guest that *has* the one cannot be given the other, ``None`` where nothing is known
    against it."""
    mine, its = (_FACTS.sub("", text or "") for text in (has, gets))
    if has is None or mine != its:
        return f"the guest has {has and mine}, and would get {its}"
    mine_driver, mine_ecc = _read(has)
    its_driver, its_ecc = _read(gets)
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


_MODES = {"0": "off", "1": "on"}


def _read(words: str) -> tuple[str | None, str | None]:
    """The driver's version and the ECC mode, as far as they are said"""
    found = [match.groups() for match in _FACTS.finditer(words)]
    return (
        next((driver for driver, _ in found if driver), None),
        next((ecc for _, ecc in found if ecc), None),
    )
