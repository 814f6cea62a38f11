# SPDX-License-Identifier: Apache-2.0
"""One file with a Container Device Interface specification, as plain values."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import yaml

from nova_gpu.core import exception
from nova_gpu.host.container import cdi_schema
from nova_gpu.host.state import files

# What an alias leads to is there again. The text that a few hundred of them unfold to would not
# fit into any memory, and an error may quote it.
_UNFOLDED = 4 * files.LARGEST


def load(path: pathlib.Path, owner_uid: int) -> dict[str, Any]:
    """The specification, which is as :data:`nova_gpu.host.container.cdi_schema.SCHEMA` says.

    :raises InvalidCDISpec: where it cannot be read, believed or understood
    """
    try:
        document = _document(path, _read(path, owner_uid))
        reason = cdi_schema.fault(document)
    except OSError as error:
        reason = str(error)
    except RecursionError:
        reason = "it cannot be parsed: it is nested too deep"
    # yaml's constructors raise whatever Python raises of a value that is not of the type it claims.
    except (ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = f"it cannot be parsed: {error}"
    if reason is not None:
        raise exception.InvalidCDISpec(str(path), reason)
    assert isinstance(document, dict)
    return document


def _read(path: pathlib.Path, owner_uid: int) -> str:
    """What is believed is what is read: both are asked of the open file."""
    with files.opened(path) as fd:
        reason = files.distrust(os.fstat(fd), owner_uid)
        if reason is not None:
            raise exception.InvalidCDISpec(str(path), reason)
        return files.text(fd)


def _document(path: pathlib.Path, text: str) -> Any:
    if path.suffix == ".json":
        return json.loads(text, object_pairs_hook=_without_repetition)
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _check(node, {})
    return loader.construct_document(node)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return result


def _check(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How much text *node* unfolds to. YAML would keep the last of two equal keys.

    :param sizes: of the nodes met before, to which an alias may lead
    :raises ValueError: where it is too much, without an end, or a key is there twice
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("it has a part that contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0  # not known yet
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _without_repetition([(str(key.value), None) for key, _ in node.value])
        inner = [each for pair in node.value for each in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    size = 1 + sum(_check(each, sizes) for each in inner)
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value)
    if size > _UNFOLDED:
        raise ValueError("its aliases make too much of it")
    sizes[id(node)] = size
    return size
