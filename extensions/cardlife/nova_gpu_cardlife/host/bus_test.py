# SPDX-License-Identifier: Apache-2.0
"""The test of a card by what needs no driver: its functions, BARs, link and PCIe errors."""

from __future__ import annotations

from nova_gpu.core.model import GPU
from nova_gpu.core.unavailability import Repair
from nova_gpu.host import pci_errors
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu_cardlife.core.verdict import Outcome, Verdict


def run(card: GPU, roots: Roots) -> Outcome:
    """Test *card*.

    A link is not expected to have its full speed: an idle card lowers it to save power.
    """
    if silent := pci_errors.silent(card, roots):
        return Outcome(
            Verdict.CRITICAL, f"{silent[0]} does not answer on the PCI bus", Repair.REBOOT
        )
    if fault := pci_errors.unusable(card, roots):
        return Outcome(Verdict.CRITICAL, str(fault), Repair.SERVICE)
    device = sysfs.device(card.address, roots)
    link = sysfs.pcie_link(device)
    try:
        width = sysfs.decimal(device, "current_link_width")
    except (OSError, ValueError):
        width = None
    if link and width is not None and width < link["width"]:
        text = f"its link has {width} lanes of {link['width']}"
        text += "; reseat it and check its riser or cable"
        return Outcome(Verdict.CRITICAL, text, Repair.SERVICE)
    errors = pci_errors.bus_errors(card, roots)
    if errors and errors.fatal:
        text = f"it has reported {errors.fatal} fatal PCIe errors since the host found it"
        text += "; reseat or replace it, and boot the host"
        return Outcome(Verdict.CRITICAL, text, Repair.SERVICE)
    if errors and errors.nonfatal:
        text = f"it has reported {errors.nonfatal} nonfatal PCIe errors since the host found it"
        return Outcome(Verdict.WARNING, text)
    return Outcome(Verdict.PASS)
