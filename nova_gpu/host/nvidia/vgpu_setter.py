# SPDX-License-Identifier: Apache-2.0
"""Script that sets how the vGPUs of one card share it, while it has none.

It runs as a process of its own, like every call that may hang in the driver
(:mod:`nova_gpu.host.child_process`), and imports nvidia-ml-py and the standard library only. Its
arguments are a card's PCI address, ``mixed`` or ``equal`` sizes, and a scheduler or nothing; it
prints one of ::

    {}
    {"error": "why it is not set"}

Source: nvml.h on nvmlDeviceSetVgpuHeterogeneousMode and nvmlDeviceSetVgpuSchedulerState.
"""

from __future__ import annotations

import json
import sys

try:
    import pynvml  # type: ignore[import-untyped,unused-ignore]
except ImportError as missing:  # it is not on all hosts
    print(json.dumps({"error": f"nvidia-ml-py cannot be imported: {missing}"}))
    sys.exit()


def main(address: str, sizes: str, scheduler: str) -> dict[str, str]:
    try:
        pynvml.nvmlInit()
        try:
            card = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
            if sizes == "mixed":
                pynvml.nvmlDeviceSetVgpuHeterogeneousMode(card, 1)
            if scheduler:
                state = pynvml.c_nvmlVgpuSchedulerSetState_t()  # 0: the driver's default
                policy = f"NVML_VGPU_SCHEDULER_POLICY_{scheduler.upper()}"
                state.schedulerPolicy = getattr(pynvml, policy)
                pynvml.nvmlDeviceSetVgpuSchedulerState(card, state)
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, AttributeError) as error:  # an old nvidia-ml-py lacks the function
        return {"error": str(error)}
    return {}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
