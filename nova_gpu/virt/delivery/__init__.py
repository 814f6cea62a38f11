# SPDX-License-Identifier: Apache-2.0
"""How a guest gets its devices: container nodes, PCI passthrough and its binding, vGPUs; rendered
as libvirt's configuration.
"""
