# SPDX-License-Identifier: Apache-2.0
"""Finds in the log of a libvirtd why it did not start, and knows remedies."""

from __future__ import annotations

import re

# 2026-11-23 14:39:21.518+0000: 1969: error : virGetUserID:760 : invalid argument: Failed to ...
_ERROR = re.compile(r"^\S+ \S+: \d+: error : \w+:\d+ : (.+)$", re.MULTILINE)
# The error that ends libvirtd. It logs other errors on many machines, and continues.
_FATAL = re.compile(r"^Initialization of (\w+) state driver failed: (?:[a-z ]+: )?(.+)$")
_MEANINGS = (
    (
        r"Failed to parse (user|group) '([^']+)'",
        "this machine has no {0} {1}, which Debian's package libvirt-daemon-system adds: "
        "apt-get install libvirt-daemon-system",
    ),
    (
        r"libvirtd: not found$",
        "it is not installed: apt-get install libvirt-daemon-system",
    ),
    (
        r"^(?:unshare|mount|umount): .*(?:denied|not permitted)",
        "this machine lets root make no mounts, as in a container without CAP_SYS_ADMIN: run it on "
        "a machine or in a VM",
    ),
)


def reason(log: str) -> str:
    """Return why the libvirtd with the log text *log* ended, and a remedy if known, in one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return "it logged nothing"
    errors = [match[1] for match in _ERROR.finditer(log)]
    fatal = [match for match in map(_FATAL.match, errors) if match]
    text = fatal[-1][2] if fatal else (errors or lines)[-1]
    for pattern, meaning in _MEANINGS:
        if match := re.search(pattern, text):
            return meaning.format(*match.groups())
    return f"its {fatal[-1][1]} driver says: {text}" if fatal else text
