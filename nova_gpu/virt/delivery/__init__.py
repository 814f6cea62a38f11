# SPDX-License-Identifier: Apache-2.0
"""How a guest gets its devices: one module for each way, behind one interface; rendered as
libvirt's configuration.
"""
