# SPDX-License-Identifier: Apache-2.0
"""Nova's own libvirt tests, with its driver and with this one in its place."""
