# SPDX-License-Identifier: Apache-2.0
"""The verdict of a test of a card, read from what its program printed.

Whatever is not understood is ``UNKNOWN``: such an answer sells no card.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

from nova_gpu.core import exception, json_text, printable
from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair


class Verdict(enum.Enum):
    """The verdicts of NVIDIA's Health Validation (docs.nvidia.com/health-validation, FAQ)."""

    PASS = "PASS"
    INFO = "INFO"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"

    @property
    def sells(self) -> bool:
        """Whether new instances may get a card with this verdict."""
        return self in (Verdict.PASS, Verdict.INFO, Verdict.WARNING)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a test. ``text`` says why the verdict is not ``PASS``, and may be empty.

    ``asks`` is the step of a repair that a test names which failed, ``None`` if it names none.
    """

    verdict: Verdict
    text: str = ""
    asks: Repair | None = None


# The release of DCGM whose dcgmi was read: dcgmi/Diag.cpp and dcgmi/Query.cpp, and what 4.2.3 and
# 4.4.2 print. DCGM publishes no schema of its JSON.
_DCGM = re.compile(r"4\.\d+\.\d+")
# The category of tests that look at the host's software only
_SOFTWARE = "Deployment"
_STATUS = {"Pass": Verdict.PASS, "Warn": Verdict.WARNING, "Fail": Verdict.CRITICAL}
_SKIPPED = "Skip"
# dcgmErrorSeverity_t of DCGM 4 (dcgm_errors.h): ISOLATE, TRIAGE and CONFIG are for a person.
_SEVERITIES = {2: Repair.SERVICE, 4: Repair.SERVICE, 5: Repair.SERVICE, 6: Repair.RESET}
_LISTED = re.compile(r"^\|\s*(\d+)\s*\|\s*Name:.*\n\|\s*\|\s*PCI Bus ID:\s*(\S+)", re.MULTILINE)
_WRONG = (ValueError, LookupError, TypeError, AttributeError)


def unknown(text: str) -> Outcome:
    return Outcome(Verdict.UNKNOWN, printable.printable(text))


def of_program(status: int, output: str) -> Outcome:
    """Return the outcome of a program that prints a ``NodeVerdict`` of NVIDIA's Health Validation.

    Of its fields ``overall_severity`` is read, and ``summary`` where there is one.
    """
    try:
        content = json_text.parse(output)
        verdict = Verdict(content["overall_severity"].upper())
        summary = content.get("summary") or ""
    except _WRONG:
        return unknown(f"it ended with {status} and printed no verdict")
    if status != (0 if verdict.sells else 1):
        return unknown(f"its exit status {status} contradicts its verdict {verdict.value}")
    return Outcome(verdict, printable.printable(summary) if isinstance(summary, str) else "")


def dcgm_gpu(output: str, card: PciAddress) -> int | None:
    """Return DCGM's number of *card* in the output of ``dcgmi discovery -l``, ``None`` without."""
    for number, address in _LISTED.findall(output):
        domain, _, rest = address.partition(":")
        try:
            if PciAddress.parse(f"{domain[-4:]}:{rest}".lower()) == card:
                return int(number)
        except exception.InvalidPciAddress:
            continue
    return None


def of_dcgm(status: int, output: str, gpu: int, level: int) -> Outcome:
    """Return the outcome of ``dcgmi diag -r LEVEL -j -i GPU``.

    A pass needs at least one test that passed, above level 1 one of the card and not only of the
    host's software, and no test with a status other than ``Pass`` or ``Skip``.
    """
    try:
        content = json_text.parse(output)
        version = str(content["metadata"]["version"])
        if not _DCGM.match(version):
            return unknown(f"DCGM {version} is none whose answers nova-gpu knows")
        results = list(_results(content["DCGM Diagnostic"], gpu))
    except _WRONG as error:
        return unknown(f"it ended with {status}, and its answer is not understood: {error}")
    verdicts = [_STATUS[result] for _, _, result, *_ in results if result != _SKIPPED]
    bad = [
        f"{name}: {text or result}"
        for _, name, result, text, _ in results
        if result not in ("Pass", _SKIPPED)
    ]
    text = printable.printable("; ".join(dict.fromkeys(bad)))
    if Verdict.CRITICAL in verdicts:
        severities = {n for *_, result, _, own in results if result == "Fail" for n in own}
        # An error that a person must look at outlasts a reset.
        asks = {_SEVERITIES[number] for number in severities & _SEVERITIES.keys()}
        return Outcome(
            Verdict.CRITICAL, text, next((step for step in reversed(Repair) if step in asks), None)
        )
    if status != 0:
        return unknown(f"it ended with {status} without a test that failed")
    of_card = {category for category, _, result, *_ in results if result != _SKIPPED}
    if not of_card or (level > 1 and of_card == {_SOFTWARE}):
        return unknown("no test of the card was run; each was skipped")
    return Outcome(Verdict.WARNING if Verdict.WARNING in verdicts else Verdict.PASS, text)


def _results(content: Any, gpu: int) -> Iterator[tuple[str, str, str, str, list[Any]]]:
    """Yield category, test, status, text and severities of each result.

    :raises ValueError, LookupError, TypeError, AttributeError: for anything else than is known
    """
    if "runtime_error" in content:
        raise ValueError(content["runtime_error"])
    for category in content["test_categories"]:
        for test in category["tests"]:
            summary = test.get("test_summary")
            for result in (*test.get("results", ()), *([summary] if summary else ())):
                if result["status"] not in (*_STATUS, _SKIPPED):
                    raise ValueError(f"the status {result['status']}")
                if result.get("entity_group") == "GPU" and result["entity_id"] != gpu:
                    raise ValueError(f"it is about GPU {result['entity_id']}, not {gpu}")
                warnings = result.get("warnings", ())
                text = ", ".join(warning["warning"] for warning in warnings)
                # A number, and hashable: what is none names no step.
                kinds = (warning.get("error_severity") for warning in warnings)
                own = [kind for kind in kinds if isinstance(kind, int)]
                yield category["category"], test["name"], result["status"], text, own
