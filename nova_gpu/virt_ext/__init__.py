# SPDX-License-Identifier: Apache-2.0
"""Installed as ``nova.virt.gpu``: ``compute_driver = gpu.GPULibvirtDriver`` finds it here."""

from nova_gpu.virt.driver import GPULibvirtDriver

__all__ = ["GPULibvirtDriver"]
