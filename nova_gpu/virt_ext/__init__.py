# SPDX-License-Identifier: Apache-2.0
"""The module ``nova.virt.gpu``, where Nova looks for ``compute_driver = gpu.GPULibvirtDriver``."""

from nova_gpu.virt.driver import GPULibvirtDriver

__all__ = ["GPULibvirtDriver"]
