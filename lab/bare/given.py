# SPDX-License-Identifier: Apache-2.0
"""What a bare root gets from this machine, so that apt and pip can download in it.

These are the machine's sources, indexes, proxies and certificates; hooks of apt, pins of versions
and cache folders are not among them.
"""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_VARIABLES = re.compile(
    r"CI|TERM|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|"
    r"(?i:https?|ftp|all|no)_(?i:proxy)"
)
# pip's options for reaching an index.
_PIP = (
    *("cert", "client-cert", "default-timeout", "disable-pip-version-check", "extra-index-url"),
    *("find-links", "index-url", "no-index", "proxy", "retries", "timeout", "trusted-host"),
)
_PIP_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
# Not the sources, only how apt fetches.
_ACQUIRE = re.compile(r"Acquire::(?!IndexTargets|Changelogs|CompressionTypes|cdrom)")
# A path in a value: alone, in a list, or as file:///path.
_PATH = re.compile(r"(?:file:(?://)?|(?<![^\s\"'=\[,]))(/[^\s\"',;\]]+)")
# Files that the bare root uses unchanged. Without the local certificates, a change of any package
# of certificates would remove them.
_FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
_FOLDERS = ("/usr/local/share/ca-certificates", "/etc/apt/auth.conf.d")
_OPTIONAL = ("/etc/apt/auth.conf",)


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a bare root gets from this machine.

    ``variables`` are environment variables. ``copied`` are files, and ``bound`` folders to mount,
    each at the same path in the root; a folder that exists there is not mounted.
    """

    variables: Mapping[str, str]
    copied: tuple[Path, ...]
    bound: tuple[Path, ...]


def acquire() -> str:
    """Return apt's configuration for downloads (Acquire), in the format of apt.conf."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    return "".join(f"{line}\n" for line in dump.stdout.splitlines() if _ACQUIRE.match(line))


def _pip_variables() -> dict[str, str]:
    """Return pip's options for downloads as environment variables.

    A later file has precedence over an earlier one, and the environment over all.
    """
    files = [Path(name).expanduser() for name in _PIP_FILES]
    if own := os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(own))
    pip: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip says what is wrong with it
        for section in ("global", "install"):
            options = parser[section] if parser.has_section(section) else {}
            pip |= {name: options[name] for name in _PIP if name in options}
    variables = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in pip.items()}
    names = {f"PIP_{name.upper().replace('-', '_')}" for name in _PIP}
    return variables | {name: value for name, value in os.environ.items() if name in names}


def _paths(texts: Iterable[str]) -> list[Path]:
    """Return the absolute paths in the settings *texts* that exist on this machine."""
    matches = (Path(match[1]) for text in texts for match in _PATH.finditer(text))
    return [path for path in dict.fromkeys(matches) if path.exists() and len(path.parts) > 2]


def machine(apt: str, sources: Iterable[Path]) -> Given:
    """Return what a bare root gets by this machine's settings."""
    variables = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    variables |= _pip_variables()
    named = _paths([*variables.values(), apt, *(path.read_text() for path in sources)])
    copied = [Path(name) for name in (*_FILES, *_OPTIONAL) if Path(name).exists()]
    for folder in _FOLDERS:
        copied += [path for path in Path(folder).rglob("*") if path.is_file()]
    bound = []
    for path in named:
        if path.is_dir():
            # The pages of an index in a folder may name files next to that folder.
            is_index = f"file://{path}" in variables.get("PIP_EXTRA_INDEX_URL", "") or (
                f"file://{path}" in variables.get("PIP_INDEX_URL", "")
            )
            bound.append(path.parent if is_index else path)
        else:
            copied.append(path)
    return Given(variables, tuple(dict.fromkeys(copied)), tuple(dict.fromkeys(bound)))
