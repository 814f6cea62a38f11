# SPDX-License-Identifier: Apache-2.0
"""The schema of a Container Device Interface (CDI) specification, from version 0.3.0 on.

The source is SPEC.md of cncf-tags/container-device-interface, version 1.1.0. The version follows
Semantic Versioning 2.0: a newer minor version adds fields, and a reader ignores those that it does
not know; a newer major version may give all fields another meaning. The schema does not check in
which version a field was introduced, which matters to writers of files only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

_OLDEST, _NEWEST = (0, 3), (1, 1)
_VERSION = re.compile(
    r"v?(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})([-+][0-9A-Za-z.+-]+)?"
)

# The characters that a domain's XML and a path may contain: no control characters, no surrogates.
_CHARACTER = r"[^\x00-\x1f\ud800-\udfff\ufffe\uffff]"
_TEXT = {"type": "string", "pattern": rf"\A{_CHARACTER}*\Z"}
_PATH = {"type": "string", "pattern": rf"\A/{_CHARACTER}*\Z"}
_UINT32 = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_BOOLEAN = {"type": "boolean"}
_ENV = {"type": "string", "pattern": rf"\A(?:(?![= ]){_CHARACTER})+={_CHARACTER}*\Z"}
_LABEL = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"


def _object(required: Sequence[str], **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _array(items: Mapping[str, object], at_least: int = 0) -> dict[str, object]:
    return {"type": "array", "items": items, "minItems": at_least}


_ANNOTATIONS = {"type": "object", "additionalProperties": {"type": "string"}}

_DEVICE_NODE = _object(
    ["path"],
    path=_PATH,
    hostPath=_PATH,
    type={"enum": ["", "b", "c", "u", "p"]},
    major=_INT64,
    minor=_INT64,
    fileMode=_UINT32,
    permissions={"type": "string", "pattern": r"\A([rwm]*|none)\Z"},
    uid=_UINT32,
    gid=_UINT32,
)

_MOUNT = _object(
    ["hostPath", "containerPath"],
    hostPath=_PATH,
    containerPath=_PATH,
    type=_TEXT,
    options=_array(_TEXT),
)

# No hook is executed, so the name that other runtimes use for its moment does not matter.
_HOOK = _object(
    ["hookName", "path"],
    hookName=_TEXT,
    path=_PATH,
    args=_array(_TEXT),
    env=_array(_ENV),
    timeout={"type": "integer", "minimum": 1},
)

_INTEL_RDT = _object(
    [],
    closID=_TEXT,
    l3CacheSchema=_TEXT,
    memBwSchema=_TEXT,
    schemata=_array(_TEXT),
    enableMonitoring=_BOOLEAN,
    enableCMT=_BOOLEAN,
    enableMBM=_BOOLEAN,
)

_EDITS = _object(
    [],
    env=_array(_ENV),
    deviceNodes=_array(_DEVICE_NODE),
    netDevices=_array(_object(["hostInterfaceName", "name"], hostInterfaceName=_TEXT, name=_TEXT)),
    mounts=_array(_MOUNT),
    hooks=_array(_HOOK),
    intelRdt=_INTEL_RDT,
    additionalGids=_array(_UINT32),
)

_DEVICE = _object(
    ["name", "containerEdits"],
    name={"type": "string", "pattern": r"\A[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z"},
    annotations=_ANNOTATIONS,
    containerEdits=_EDITS,
)

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        ["cdiVersion", "kind", "devices"],
        cdiVersion={"type": "string"},
        kind={"type": "string", "pattern": rf"\A(?=[^/]{{1,253}}/.{{1,63}}\Z){_LABEL}/{_LABEL}\Z"},
        annotations=_ANNOTATIONS,
        devices=_array(_DEVICE, at_least=1),
        containerEdits=_EDITS,
    ),
}

_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def fault(document: object) -> str | None:
    """Return why *document* is no valid specification, ``None`` if it is one.

    :param document: a parsed specification, from which :func:`known` has removed unknown fields
    """
    version = document.get("cdiVersion") if isinstance(document, dict) else None
    if isinstance(version, str) and (reason := _unfit(version)):
        return reason
    error = jsonschema.exceptions.best_match(_VALIDATOR.iter_errors(document))
    if error is not None:
        where = "/".join(str(step) for step in error.absolute_path)
        return f"{where}: {error.message}" if where else str(error.message)
    assert isinstance(document, dict)
    names = [device["name"] for device in document["devices"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"device {twice[0]!r} occurs twice" if twice else None


def known(document: object) -> tuple[object, list[str]]:
    """Return *document* without unknown fields, and the descriptions of these for a message.

    A newer version of CDI is described, too.
    """
    unknown: list[str] = []
    stripped = _stripped(document, SCHEMA, unknown)
    version = document.get("cdiVersion") if isinstance(document, dict) else None
    if isinstance(version, str) and _numbers(version) > _NEWEST:
        unknown.insert(0, f"cdiVersion {version}")
    return stripped, list(dict.fromkeys(unknown))


def _stripped(value: object, schema: Mapping[str, Any], unknown: list[str]) -> object:
    if isinstance(value, list) and "items" in schema:
        return [_stripped(item, schema["items"], unknown) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    unknown += (f"field {str(key)[:64]!r}" for key in value if key not in properties)
    return {
        key: _stripped(inner, properties[key], unknown)
        for key, inner in value.items()
        if key in properties
    }


def _unfit(version: str) -> str | None:
    """Return why files of this CDI version cannot be used, ``None`` if they can."""
    numbers = _numbers(version)
    if not numbers:
        return f"cdiVersion: {version[:64]!r} is not a version, such as 1.1.0"
    if numbers < _OLDEST:
        return f"cdiVersion: {version} is older than 0.3.0, the first that nova-gpu supports"
    if numbers[0] > _NEWEST[0]:
        return (
            f"cdiVersion: {version} is of a newer major version than 1, in which known fields may "
            "mean something else; install a nova-gpu that knows it, or have the vendor's tool "
            "write version 1"
        )
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the major and the minor version, or an empty tuple if *version* is not a version."""
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2])) if match else ()
