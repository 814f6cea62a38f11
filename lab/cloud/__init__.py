# SPDX-License-Identifier: Apache-2.0
"""A whole OpenStack on one machine, whose files are in one folder and which can be removed.

A *pretended* GPU has a device node with the number of NVIDIA's driver, and files like those in
sysfs, but no card. A *lab* is such an OpenStack with its folder; ``steps`` prints what is done.
"""
