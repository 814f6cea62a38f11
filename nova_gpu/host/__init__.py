# SPDX-License-Identifier: Apache-2.0
"""Access to this host: what the kernel and the drivers report, and the writes they accept.

Folders such as /sys and the values of options are arguments; nothing of Nova is imported.
"""
