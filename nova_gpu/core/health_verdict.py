# SPDX-License-Identifier: Apache-2.0
"""Reasons why a card is faulty, derived from the numbers that the card and its driver report."""

from __future__ import annotations

import dataclasses

from nova_gpu.core.unavailability import Repair, Source, Unavailable

# Xid 79 is "GPU has fallen off the bus": the card may answer again and fail again, so only a person
# can declare it healthy.
FALLEN_OFF_THE_BUS = 79

# NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, "Resolution Bucket (Immediate Action)"):
# the Xids whose action is to reset the card or to restart the host, and 48, whose text says the
# same. Left out: 109, which a tenant's program can cause, and 155 and 156, which also report
# intended events. If one of those does need a reset, NVML's recovery action says it.
FATAL_XIDS = (46, 48, 62, 64, FALLEN_OFF_THE_BUS, 95, 110, 119, 120, 136, 140, 143, 158)

# "Contained memory error": programs that used the memory are ended, all others are unaffected. If
# it names a MIG instance, only that instance is affected; the Xids above affect the whole card.
CONTAINED_XID = 94

# nvml.h: NVML_GPU_RECOVERY_ACTION_*, 0 is none
_RECOVERY_ACTIONS = {
    1: ("reset it (nvidia-smi --gpu-reset)", Repair.RESET),
    2: ("boot the host again", Repair.REBOOT),
    3: (
        "end the processes that use it and its NVLink peers, then check nvidia-smi -q again",
        Repair.DRAIN_AND_RESET,
    ),
    4: (
        "end the processes that use it, then reset it (nvidia-smi --gpu-reset)",
        Repair.DRAIN_AND_RESET,
    ),
    5: ("recover its IMEX domain", None),
    6: ("reset the bus that it is on", Repair.BUS_RESET),
    7: ("boot the host again", Repair.REBOOT),
}
_UNKNOWN_ACTION = "do what it names in nvidia-smi -q (GPU Recovery Action)", None
# nvml.h: NVML_GPU_FABRIC_STATE_*; 0 is a card without a fabric
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_FABRIC_COMPLETED = 3
# nvml.h: NVML_COMPUTEMODE_PROHIBITED
_PROHIBITED = 2
_FABRIC_REMEDY = (
    "check that nvidia-fabricmanager runs and has the driver's version, and on a host of "
    "containers FABRIC_MODE=0 (with another mode a card joins when a partition with it is "
    "activated); see its log, and nvidia-smi -q (Fabric)"
)
# nvml.h: NVML_GPU_FABRIC_HEALTH_MASK_*: the position and the width of a value in the mask, the
# values that are no fault, and the fault. 0 is a value that is not supported. Values of recoveries
# (ROUTE_RECOVERY, ACCESS_TIMEOUT_RECOVERY) pass by themselves and are left out.
_FABRIC_FAULTS = (
    (4, 0x3, (0, 2), "its route in the fabric of its NVSwitches is unhealthy"),
    (8, 0xF, (0, 1), "its configuration does not fit the fabric of its NVSwitches"),
    (0, 0x3, (0, 2), "it has less than its bandwidth in the fabric of its NVSwitches"),
)
_UNHEALTHY_REMEDY = (
    "see nvidia-smi -q (Fabric: Health), Fabric Manager's log and the kernel's log for SXids; "
    "reset the card with its NVSwitches, or boot the host again, and have the board checked"
)
_RESET = (
    "end the processes that use it and reset it (nvidia-smi --gpu-reset), or boot the host again"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorCounts:
    """The PCIe errors that a card and its link have reported since the kernel found the card."""

    fatal: int
    nonfatal: int
    correctable: int


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlHealth:
    """The state of one card as NVIDIA's driver reports it; ``None`` for a value it does not report.

    ``lost``: the card does not answer its driver. ``refused``: why NVML cannot open the card, for
    example because the driver could not initialise it (RmInitAdapter, kernel-open/nvidia/nv.c).
    ``uncorrected`` counts ECC errors since the driver was loaded or the card was reset; the count
    over its whole life would not tell whether it is healthy now. The others are nvml.h's numbers:
    ``recovery_action``; ``fabric_state``, how far the card has joined the fabric of its NVSwitches;
    ``fabric_status``, how the attempt ended; ``fabric_health``, the mask of the fabric's faults;
    ``compute_mode``, how many programs may use the card.
    """

    lost: bool = False
    uncorrected: int | None = None
    retirement_pending: bool | None = None
    remapping_pending: bool | None = None
    remapping_failed: bool | None = None
    recovery_action: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    refused: str | None = None
    compute_mode: int | None = None
    fabric_health: int | None = None


def of_bus_errors(first: ErrorCounts, now: ErrorCounts) -> Unavailable | None:
    """Return the reason for a card with new fatal or nonfatal PCIe errors, else ``None``.

    :param first: the counts at nova-compute's first look at the card
    """
    risen = [
        f"{after - before} {kind}"
        for kind, before, after in (
            ("fatal", first.fatal, now.fatal),
            ("nonfatal", first.nonfatal, now.nonfatal),
        )
        if after > before
    ]
    if not risen:
        return None
    return Unavailable(
        f"it has reported {' and '.join(risen)} PCIe errors since nova-compute first saw it",
        "see the kernel's log for them (AER); reseat or replace the card, or restart nova-compute "
        "to count from now on",
        Source.BUS,
        asks=Repair.RESET,
    )


def of_nvml(health: NvmlHealth) -> Unavailable | None:
    """Return the gravest problem in NVML's report of a card, ``None`` without any.

    ``lost`` and ``refused`` are ignored here: the caller handles them.
    """
    if health.remapping_failed:
        reason = "rows of its memory could not be remapped"
        return Unavailable(reason, "replace the card", Source.NVML, asks=Repair.SERVICE)
    if health.recovery_action:
        action, asks = _RECOVERY_ACTIONS.get(health.recovery_action, _UNKNOWN_ACTION)
        reason = "its driver asks for a recovery action"
        return Unavailable(reason, action, Source.NVML, asks=asks)
    if health.uncorrected:
        reason = f"{health.uncorrected} ECC errors of its memory were not corrected"
        return Unavailable(reason, _RESET, Source.NVML, asks=Repair.RESET)
    if health.compute_mode == _PROHIBITED:
        return Unavailable(
            "its compute mode is PROHIBITED, so that no program may use it",
            "set it back (nvidia-smi --compute-mode=0)",
            Source.NVML,
        )
    if state := _of_fabric(health):
        reason = f"{state}, and CUDA would fail with error 802"
        return Unavailable(reason, _FABRIC_REMEDY, Source.NVML)
    if fault := _fabric_fault(health):
        return Unavailable(fault, _UNHEALTHY_REMEDY, Source.NVML, asks=Repair.REBOOT)
    if health.retirement_pending:
        reason = "pages of its memory are to be retired"
        return Unavailable(reason, _RESET, Source.NVML, asks=Repair.RESET)
    if health.remapping_pending:
        reason = "rows of its memory are to be remapped"
        return Unavailable(reason, _RESET, Source.NVML, asks=Repair.RESET)
    return None


def _of_fabric(health: NvmlHealth) -> str | None:
    if not health.fabric_state:
        return None
    if health.fabric_state != _FABRIC_COMPLETED:
        state = _FABRIC_STATES.get(health.fabric_state, health.fabric_state)
        return f"it has not joined the fabric of its NVSwitches (state: {state})"
    # Until the card has completed, the status means nothing (nvml.h, nvmlGpuFabricInfoV_t).
    if health.fabric_status:
        return f"it could not join the fabric of its NVSwitches (NVML error {health.fabric_status})"
    return None


def _fabric_fault(health: NvmlHealth) -> str | None:
    """Return the gravest fault in the fabric of a card that has joined it, ``None`` without any."""
    if health.fabric_state != _FABRIC_COMPLETED:
        return None
    mask = health.fabric_health or 0
    for shift, width, well, fault in _FABRIC_FAULTS:
        if mask >> shift & width not in well:
            return fault
    return None


def of_xid(code: int, text: str, instance: str | None = None) -> Unavailable:
    """Return the reason for a card of which NVIDIA's driver reported an Xid."""
    remedy = "see NVIDIA's Xid catalog and reset, repair or replace the card"
    report = f"its driver reported Xid {code}" + (
        f" of MIG instance {instance}" if instance else ""
    )
    # The catalog's action for 79 is to restart the host (RESTART_BM), for the others a reset.
    asks = Repair.REBOOT if code == FALLEN_OFF_THE_BUS else Repair.RESET
    return Unavailable(report + (f" ({text})" if text else ""), remedy, Source.XID, asks=asks)


def of_mig_mode() -> Unavailable:
    """Return the reason for a card of KVM guests that is in MIG mode after its cleaning.

    Its last guest may have turned the mode on, or the operator before the first guest. A100 and A30
    keep MIG mode over a reset and a boot of the host (NVIDIA/gpu-admin-tools#2); later cards do
    not.
    """
    return Unavailable(
        "it is in MIG mode after its cleaning; a guest may have left it so, and without MIG "
        "instances CUDA finds no device",
        "turn MIG mode off (nvidia-smi -mig 0)",
        Source.NVML,
    )
