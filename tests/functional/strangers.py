# SPDX-License-Identifier: Apache-2.0
"""Domains that are no instance's."""

from __future__ import annotations

# minors 0 to 3 are the second socket's
DOMAIN = """
<domain type='lxc'>
  <name>somebodys</name><uuid>{uuid}</uuid><memory>1024</memory><vcpu>1</vcpu>
  <os><type>exe</type><init>/sbin/init</init></os>
  <devices>
    <hostdev mode='capabilities' type='misc'><source><char>/dev/nvidia4</char></source></hostdev>
  </devices>
</domain>"""
