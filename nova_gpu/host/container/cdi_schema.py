# SPDX-License-Identifier: Apache-2.0
"""What a Container Device Interface specification may say, versions 0.3.0 to 1.1.0.

Written from SPEC.md of cncf-tags/container-device-interface. Unknown fields make a file invalid, as
does a field newer than the version the file names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema

_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

# What may stand in a domain's XML and in a path: no control characters, no halves of characters.
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

_HOOK = _object(
    ["hookName", "path"],
    hookName={
        "enum": [
            "prestart",
            "createRuntime",
            "createContainer",
            "startContainer",
            "poststart",
            "poststop",
        ]
    },
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
    # Of a device that changes nothing, nobody can have meant anything.
    containerEdits={**_EDITS, "minProperties": 1},
)

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        ["cdiVersion", "kind", "devices"],
        cdiVersion={"enum": [*_VERSIONS, *(f"v{version}" for version in _VERSIONS)]},
        kind={"type": "string", "pattern": rf"\A(?=[^/]{{1,253}}/.{{1,63}}\Z){_LABEL}/{_LABEL}\Z"},
        annotations=_ANNOTATIONS,
        devices=_array(_DEVICE, at_least=1),
        containerEdits=_EDITS,
    ),
}

_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def fault(document: object) -> str | None:
    """What is wrong with *document*, a parsed specification, or ``None``"""
    error = jsonschema.exceptions.best_match(_VALIDATOR.iter_errors(document))
    if error is not None:
        where = "/".join(str(step) for step in error.absolute_path)
        return f"{where}: {error.message}" if where else str(error.message)
    assert isinstance(document, dict)
    version = document["cdiVersion"].removeprefix("v")
    for feature, since in _features(document):
        if _VERSIONS.index(version) < _VERSIONS.index(since):
            return f"{feature} is known since cdiVersion {since}, and the file says {version}"
    for edits in _edits(document):
        if version == "1.1.0" and {"enableCMT", "enableMBM"} & edits.get("intelRdt", {}).keys():
            return "enableCMT and enableMBM of intelRdt are gone since cdiVersion 1.1.0"
    names = [device["name"] for device in document["devices"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"device {twice[0]!r} is there twice" if twice else None


def _features(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the document uses that came after 0.3.0, with the version it came in"""
    described = (document, *document["devices"])
    if any(part.get("annotations") for part in described):
        yield "annotations", "0.6.0"
    if "." in document["kind"].partition("/")[2]:
        yield "a dot in the class of kind", "0.6.0"
    for device in document["devices"]:
        if device["name"][0].isdigit():
            yield f"a digit at the start of a device's name ({device['name']})", "0.5.0"
    for edits in _edits(document):
        rdt = edits.get("intelRdt", {})
        if any(mount.get("type") for mount in edits.get("mounts", ())):
            yield "type of a mount", "0.4.0"
        if any(node.get("hostPath") for node in edits.get("deviceNodes", ())):
            yield "hostPath of a device node", "0.5.0"
        if "intelRdt" in edits:
            yield "intelRdt", "0.7.0"
        if edits.get("additionalGids"):
            yield "additionalGids", "0.7.0"
        if edits.get("netDevices"):
            yield "netDevices", "1.1.0"
        if "schemata" in rdt or rdt.get("enableMonitoring"):
            yield "schemata and enableMonitoring of intelRdt", "1.1.0"


def _edits(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield document.get("containerEdits", {})
    for device in document["devices"]:
        yield device["containerEdits"]
