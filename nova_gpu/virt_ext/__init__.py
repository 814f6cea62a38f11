# SPDX-License-Identifier: Apache-2.0
"""Installed as ``nova.virt.gpu``, so that ``compute_driver = gpu.GPULibvirtDriver`` finds the class."""

from nova_gpu.virt.driver import GPULibvirtDriver

__all__ = ["GPULibvirtDriver"]
