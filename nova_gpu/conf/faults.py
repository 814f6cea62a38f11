# SPDX-License-Identifier: Apache-2.0
"""The [gpu] option about what an instance's user is told."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from nova_gpu.core.disclosure import Detail

OPTS: Sequence[cfg.Opt] = (
    cfg.StrOpt(
        "fault_detail",
        default=Detail.FITTING,
        choices=[
            (
                Detail.ALL,
                "how many GPUs there are, in use and out of service, and the host and PCI address "
                "of a card that cannot be given: for a cloud whose users may know its hosts",
            ),
            (
                Detail.FITTING,
                "what would fit: which kinds of GPUs there are and how many of them are free in "
                "one host, which a user could find out by asking for fewer",
            ),
            (
                Detail.LEAST,
                "that it does not fit, and what is wrong with the flavor or the image",
            ),
        ],
        help="""
How much the fault of an instance says of why it cannot have its GPUs, which its user reads. The
logs of nova-scheduler and nova-compute, notifications and what ``openstack gpu`` shows to
administrators always have all. Read by nova-scheduler and nova-compute.
""",
    ),
)
