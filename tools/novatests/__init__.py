# SPDX-License-Identifier: Apache-2.0
"""Nova's own libvirt tests, with its driver and with ours in its place."""
