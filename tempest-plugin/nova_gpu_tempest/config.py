# SPDX-License-Identifier: Apache-2.0
"""What the tests have to know of the cloud."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("nova_gpu", title="Instances with GPUs")

OPTS = (
    cfg.IntOpt("gpus", default=2, min=1, help="How many GPUs the tests' flavor asks for."),
    cfg.StrOpt(
        "architecture",
        help="The architecture it asks for, such as fermi. Any, where this is not set.",
    ),
    cfg.StrOpt("hypervisor", help="The hypervisor it asks for: LXC or KVM. Any by default."),
    cfg.IntOpt("vcpus", default=1, min=1, help="VCPUs of the tests' flavors."),
    cfg.IntOpt("ram", default=256, min=1, help="Memory of the tests' flavors, in MiB."),
    cfg.IntOpt("disk", default=1, min=0, help="Disk of the tests' flavors, in GiB."),
    cfg.BoolOpt(
        "networks",
        default=True,
        help="Whether the tests' instances are attached to a network as Nova chooses, or to none.",
    ),
)
