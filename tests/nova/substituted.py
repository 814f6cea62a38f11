# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.nova.substituted -m MODULE [ARGUMENT ...]``: a Python in which
``nova.virt.libvirt.driver.LibvirtDriver`` is ours, on a host without GPUs.

What stestr starts as ``$PYTHON``. It runs in the tests' process only: nova_gpu itself replaces
nothing of Nova.
"""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import importlib
import os
import runpy
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

# "unit" or "functional": whose package Nova's tests expect to be imported before all else.
SUITE = "NOVA_GPU_TESTS_NOVA_SUITE"


def substitute() -> None:
    """After the tests' package, which decides between native threads and eventlet."""
    importlib.import_module(f"nova.tests.{os.environ[SUITE]}")
    from nova.virt import libvirt
    from nova.virt.libvirt import driver

    from nova_gpu.conf import gpu
    from nova_gpu.virt.driver import GPULibvirtDriver

    _spare()
    stock = driver.LibvirtDriver
    driver.LibvirtDriver = libvirt.LibvirtDriver = GPULibvirtDriver
    # A test that patches a static method of a class puts back a plain one, unless it is its own.
    for name, value in vars(stock).items():
        if isinstance(value, staticmethod) and name not in vars(GPULibvirtDriver):
            setattr(GPULibvirtDriver, name, value)
    root = Path(tempfile.mkdtemp(prefix="nova-gpu-tests-nova-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "bus/pci/devices").mkdir(parents=True)
    # The tests clear the configuration: what is to hold in each of them is the option's own
    # default. This machine may have GPUs, and Nova's tests may not look into its /sys.
    for option in gpu.OPTS:
        if option.name == "sysfs_root":
            option.default = str(root)
        elif option.name == "nvml":
            option.default = False


def _spare() -> None:
    """Spare what Nova's tests do anew for each of them and nobody learns from: half of their time.

    Each writes the same file of policies, which YAML's parser reads twice, and copies all of Nova's
    own with what they are made of. And each makes so many mocks that Python looks through all of
    Nova for what may go, again and again.
    """
    policy: Any = importlib.import_module("oslo_policy.policy")
    read = functools.lru_cache(maxsize=8)(policy.parse_file_contents)
    # Names and texts: whoever changes it changes his own.
    policy.parse_file_contents = lambda data: dict(read(data))
    # Of a rule nothing is changed in place, and what it is copied with is parsed once.
    policy.copy = types.SimpleNamespace(deepcopy=copy.copy)
    gc.set_threshold(100_000, 20, 100)


def main() -> None:
    if sys.argv[1:2] != ["-m"]:
        sys.exit("usage: python -m tests.nova.substituted -m MODULE [ARGUMENT ...]")
    substitute()
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
