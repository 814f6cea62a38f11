# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about tests of cards."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg
from oslo_config import types as cfg_types

# Values of card_test that are no path
BUS, DCGMI = "bus", "dcgmi"
# Values of card_repair
RESET, BUS_RESET = "reset", "bus-reset"

OPTS: Sequence[cfg.Opt] = (
    cfg.MultiStrOpt(
        "card_test",
        default=[],
        help="""
How nova-compute tests a card before new instances get it. Unset: cards are not tested.

* ``bus``: whether the card answers on the PCI bus, has all its BARs, the width of its link, and no
  fatal PCIe errors. It takes no time and needs no driver.
* ``dcgmi``, and as a second value the level from 1 to 4: NVIDIA's ``dcgmi diag`` of DCGM 4, for
  cards that NVIDIA's driver has; ``bus`` for all others. A level takes from seconds (1) to more
  than an hour (4).
* A program of yours: the option once for its absolute path and once for each argument, in this
  order. The card's address (``0000:88:00.0``) is added as the last argument. There is no shell. It
  runs as root in ``/``, with the environment of ``[gpu]clean_command``. It prints one JSON object,
  whose ``overall_severity`` is ``PASS``, ``INFO`` or ``WARNING`` with the exit status 0, or
  ``CRITICAL`` or ``UNKNOWN`` with 1, as NVIDIA's Health Validation does, and may have a
  ``summary``. Only root may own and be able to write the program and all folders above it.

Each of them begins with the test ``bus``. A card is tested while no instance has it: when it is new
on the host, comes out of quarantine, has another driver or firmware, or ``nova-gpu test`` was run;
and from time to time with ``[gpu]card_test_days``. Until it passes with ``PASS``, ``INFO`` or
``WARNING``, new instances do not get it.

Related options:

* ``[gpu]card_test_timeout``, ``[gpu]card_test_at_once``
* ``[gpu]card_test_days``, ``[gpu]card_test_leave_free``
""",
    ),
    cfg.IntOpt(
        "card_test_timeout",
        default=1800,
        min=1,
        max=86400,
        help="""
Seconds allowed for one test of a card. A test that takes longer is killed with its process group,
and new instances do not get the card.

Related options:

* ``[gpu]card_test``
""",
    ),
    cfg.IntOpt(
        "card_test_at_once",
        default=1,
        min=1,
        help="""
How many cards of the host are tested at the same time.

Related options:

* ``[gpu]card_test``
""",
    ),
    cfg.IntOpt(
        "card_test_days",
        default=0,
        min=0,
        help="""
Days after which a card that passed its test is tested again, while it is free. 0: never.

Related options:

* ``[gpu]card_test_leave_free``
""",
    ),
    cfg.IntOpt(
        "card_test_leave_free",
        default=1,
        min=0,
        help="""
How many free cards of the same product remain for new instances while cards that are offered are
tested: those that ``[gpu]card_test_days`` makes due, and those that the host had when
``[gpu]card_test`` was first set. None of them is chosen while a test on the host has given no
verdict. With 0 the last free card is tested as well.

Related options:

* ``[gpu]card_test_days``
""",
    ),
    cfg.ListOpt(
        "card_repair",
        default=[],
        item_type=cfg_types.String(choices=[RESET, BUS_RESET]),
        help="""
What nova-compute itself does to a faulty card, while no instance has it. Unset: cards are not
repaired. If it is set, a card that had a fault which asks for a step of a repair is offered only
after that step and a test that passes after it, also if the fault is not reported any more.

* ``reset``: the reset that also cleans a card after a guest; for containers
  ``nvidia-smi --gpu-reset``
* ``bus-reset``: a reset of the card's whole bus, while no instance has another card that it could
  reach; not for containers

For every other step the card waits, and the reason says what to do. nova-compute never boots the
host.

Related options:

* ``[gpu]card_test``, which must be set
* ``[gpu]card_repair_tries``, ``[gpu]card_repair_days``
""",
    ),
    cfg.IntOpt(
        "card_repair_tries",
        default=3,
        min=1,
        max=100,
        help="""
After how many steps in ``[gpu]card_repair_days`` days a card that needs another one is to be
replaced. New instances do not get it until ``nova-gpu test`` was run. Boots of the host count while
the card waits for a step.

Related options:

* ``[gpu]card_repair``
""",
    ),
    cfg.IntOpt(
        "card_repair_days",
        default=30,
        min=1,
        help="""
Days in which the steps count that ``[gpu]card_repair_tries`` limits.

Related options:

* ``[gpu]card_repair``
""",
    ),
    cfg.StrOpt(
        "passport_folder",
        default="",
        help="""
Absolute path of the folder with the passports of this host's cards: where a card was, its faults,
tests and cleanings, by its serial number. Empty: cards have no passports. nova-compute writes one
file for each card and host there, and must be able to. Let all hosts share the folder, such as on
NFS, to have a card met with its history on another host.

Related options:

* ``[gpu]passport_most_returns``
""",
    ),
    cfg.IntOpt(
        "passport_most_returns",
        default=0,
        min=0,
        max=1000,
        help="""
How often in 30 days a card may come back after a fault, on this host or on others that share the
folder. New instances do not get one that came back more often, until an operator accepts it with
``nova-gpu passport ADDRESS --accept REASON``. 0: any number.

Related options:

* ``[gpu]passport_folder``, which must be set
""",
    ),
)
