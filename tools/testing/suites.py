# SPDX-License-Identifier: Apache-2.0
"""The suites: for each its commands, how their output is read, and how long they may take."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence

from tools.testing import outcome
from tools.testing.environment import STATE, Environment

# tests.lxc, tests.crash, tests.vfio and tests.gpu end with this (automake's word for "skipped")
# after a line "SKIP: reason" when the machine cannot run them at all.
SKIPPED = 77

# What is run by bash, and by any other shell. devstack's are sourced.
BASH = (
    *(f".ci/{name}" for name in ("run", "suites")),
    "tempest-plugin/against-lab",
    *(f"devstack/{name}" for name in ("override-defaults", "plugin.sh", "settings")),
)
_INSIDE = ("folders", "guest", "init", "initramfs", "qemu", "resume", "sriov-manage", "up")
SH = (
    "tools/test",
    "tests/vfio/look.sh",
    *(f"tools/novalab/{name}.sh" for name in ("init", "probe")),
    *(f"tools/vfiolab/inside/{name}.sh" for name in _INSIDE),
)


@dataclasses.dataclass(frozen=True)
class Check:
    """One command of a suite. ``reader`` None: the command is a single test named ``name``."""

    name: str
    argv: tuple[str, ...]
    reader: outcome.Reader | None = None


@dataclasses.dataclass(frozen=True)
class Suite:
    """A named part of the tests.

    ``usual_s`` is how long it takes on two processors. ``limit_s`` ends what stands still, and
    leaves room where others run beside it. ``echo``: every finished test is shown, not only
    failures. ``lane``: suites of one lane share something of the machine; see
    :mod:`tools.testing.lanes`. ``spread``: its tests are spread over a process for each processor,
    and stand back for a suite that waits for its own guests. ``release_only``: it runs where it is
    named and with ``--all``, not for each commit.
    """

    name: str
    summary: str
    usual_s: float
    limit_s: float
    echo: bool = False
    every_release: bool = False
    lane: str = ""
    spread: bool = False
    release_only: bool = False


SUITES = (
    Suite(
        "style", "ruff, Nova's hacking checks, shellcheck, release notes, documentation", 30, 600
    ),
    Suite("types", "mypy --strict", 20, 600),
    Suite("unit", "tests/unit", 450, 1800, spread=True),
    Suite(
        "nova",
        "Nova's own unit tests of its libvirt driver, with this one in its place",
        150,
        1800,
        spread=True,
    ),
    Suite(
        "functional",
        "tests/functional: Nova's API, scheduler, conductor, compute and Placement in one process",
        1460,
        3900,
        echo=True,
        every_release=True,
        spread=True,
    ),
    # These count what is left of cgroups, mounts and loop devices.
    Suite(
        "lxc",
        "tests/lxc: the same against a real libvirtd and its LXC driver",
        900,
        2400,
        echo=True,
        lane="libvirtd",
    ),
    Suite(
        "crash",
        "tests/crash: nova-compute is killed again and again",
        400,
        2400,
        echo=True,
        lane="libvirtd",
    ),
    Suite(
        "guide",
        "tools/lab guide: the documentation's commands, in a cloud of separate processes",
        260,
        1800,
        lane="libvirtd",
    ),
    Suite(
        "vfio",
        "tests/vfio, tests/vgpu: nova-compute in VMs with an IOMMU, KVM and cards, on QEMU",
        500,
        2400,
        echo=True,
        lane="vm",
    ),
    Suite(
        "moves",
        "tests/moves: two such hosts, between which guests with vGPUs move as they run",
        440,
        1800,
        echo=True,
        lane="vm",
    ),
    Suite(
        "shapes",
        "tests/shapes: guests with six shapes of a machine, and nova-gpu inside",
        400,
        1800,
        echo=True,
        lane="vm",
        release_only=True,
    ),
    Suite(
        "bars",
        "tests/bars: guests with BIOS and with UEFI whose cards have large BARs",
        300,
        1800,
        echo=True,
        lane="vm",
        release_only=True,
    ),
    Suite(
        "gpu",
        "tests/gpu: the readers of a host on a machine with a real card of NVIDIA's",
        60,
        540,
        echo=True,
        release_only=True,
    ),
)
BY_NAME = {suite.name: suite for suite in SUITES}


def checks(
    suite: Suite,
    environment: Environment,
    pattern: str | None,
    tests: Sequence[str] = (),
) -> Sequence[Check]:
    """Return the commands of *suite*, in their order; those that run *tests* alone where some are
    named and the suite can choose."""
    own = f"tests.{suite.name}"
    if suite.name == "style":
        return _style()
    if suite.name == "types":
        return (Check("mypy", ("mypy", "--cache-dir", str(STATE / "mypy"))),)
    if suite.name == "nova":
        selection = ("-k", pattern) if pattern else ()
        return (
            Check("unit tests", (environment.python, "-m", "tools.novatests", "unit", *selection)),
        )
    if suite.name == "crash":
        argv = (environment.python, "-m", "tests.crash", "--points", "50")
        return (Check(own, argv, outcome.from_unittest),)
    if suite.name == "guide":
        return (Check("pages", ("tools/lab", "guide")),)
    if suite.lane == "vm" or suite.name in ("lxc", "gpu"):
        wanted = tests or ((pattern,) if pattern else ())
        chosen = tuple(word for each in wanted for word in ("-k", each))
        module: tuple[str, ...] = (own,)
        if suite.lane == "vm" and suite.name != "vfio":
            module = ("tests.vfio", "--tests", own.replace(".", "/"))
        line = (environment.python, "-m", *module, *chosen)
        return (Check(own, line, outcome.from_unittest),)
    if tests:
        pattern = "|".join(rf"{re.escape(name)}(\W|$)" for name in tests)
    return (_stestr(suite, environment, pattern),)


def _style() -> Sequence[Check]:
    documentation = ("sphinx-build", "-W", "-q", "--keep-going", "-b", "html")
    return (
        Check("ruff check", ("ruff", "check", ".")),
        Check("ruff format", ("ruff", "format", "--check", ".")),
        Check(
            "flake8", ("flake8", "nova_gpu", "osc_gpu", "tests", "tools", "benchmarks", "doc/ext")
        ),
        Check("shellcheck", ("shellcheck", "--severity=warning", "--shell=bash", *BASH)),
        Check("shellcheck sh", ("shellcheck", "--severity=warning", "--shell=dash", *SH)),
        Check("reno lint", ("reno", "lint")),
        Check("guests", ("python", "-m", "tools.guests")),
        Check("documentation", (*documentation, "doc/source", str(STATE / "doc"))),
    )


def _stestr(suite: Suite, environment: Environment, pattern: str | None) -> Check:
    # A repository of its own per suite and release: two runs side by side do not lock each other.
    repository = STATE / "stestr" / f"{suite.name}-{environment.release}"
    repository.mkdir(parents=True, exist_ok=True)
    argv = (
        *("stestr", "--test-path", f"tests/{suite.name}", "--top-dir", "."),
        # The tests of a class in one process: what they begin with is made once.
        *("--group_regex", r"([^\.]+\.)+"),
        *("--repo-url", str(repository)),
        *("run", "--concurrency", str(os.cpu_count() or 1)),
        *((pattern,) if pattern else ()),
    )
    return Check(suite.name, argv, outcome.from_stestr)
