# SPDX-License-Identifier: Apache-2.0
"""Each error that a user or an operator can meet has its entry in the documentation."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import unittest
from collections.abc import Iterator

import nova_gpu
from nova_gpu.core import availability, exception

PACKAGE = pathlib.Path(nova_gpu.__file__).parent
PAGE = PACKAGE.parent / "doc/source/admin/troubleshooting.rst"
# What stands in a text for what differs.
_ANY = "\N{WHITE SQUARE}"
# Of modules whose functions give the reason itself, or raise it for who makes an error of it.
_REASONS = {
    *("core/flavor/condition", "core/flavor_mismatch", "core/health_verdict", "core/refusal_texts"),
    *("core/scheduling/capacity", "core/scheduling/reasons", "core/vgpu/vgpu"),
    *("host/clean_command", "host/mig/mig_layout", "host/pci/consoles", "host/pci/direct_links"),
    *("host/pci/kfd", "host/pci/selection", "host/vfio/passthrough", "host/vgpu/division"),
    *("scheduler/filters", "virt/delivery/binding", "virt/delivery/container_nodes"),
    *("virt/delivery/hostdev_parts", "virt/delivery/pci_aliases", "virt/delivery/pci_passthrough"),
    *("virt/inventory/card_groups", "virt/inventory/discovery", "virt/inventory/vgpu_cards"),
    *("virt/lifecycle/refusals", "virt/live_migration/arrivals", "virt/live_migration/departures"),
    *("virt/live_migration/moves", "virt/verify/gather"),
}
# A text is found by so many of its words.
_WORDS = 6
# Parameters and names that say what to do, not what is wrong.
_ADVICE = re.compile(r"remed|allowed|action|_RESET", re.IGNORECASE)
_ERRORS = {
    name: each
    for name, each in vars(exception).items()
    if isinstance(each, type) and issubclass(each, exception.GPUError)
}


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (v.value if isinstance(v, ast.Constant) else _ANY for v in node.values)
        return "".join(map(str, parts))
    return None


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.expr) and (text := _text(node)) is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _parameters(error: type) -> list[inspect.Parameter]:
    """Those that have to be given; of the root, which takes anything, none."""
    if "__init__" not in vars(error) and error.__init__ is Exception.__init__:  # type: ignore[misc]
        return []
    found = inspect.signature(error).parameters.values()
    return [each for each in found if each.default is each.empty]


def _reasons_of(call: ast.Call, error: type) -> Iterator[ast.expr]:
    """The arguments that are no advice, nor whom it concerns beside"""
    names = [each.name for each in _parameters(error)] or ["text"]
    for name, value in zip(names, call.args, strict=False):
        if not _ADVICE.search(name):
            yield value


def _error(node: ast.expr | None) -> type | None:
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    return availability.Unavailable if name == "Unavailable" else _ERRORS.get(name)


def errors(module: pathlib.Path) -> Iterator[str]:
    """What a module says is wrong, each text as it stands in the source."""
    tree = ast.parse(module.read_text())
    gives_reasons = str(module.relative_to(PACKAGE).with_suffix("")) in _REASONS
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (error := _error(node)):
            for reason in _reasons_of(node, error):
                yield from _texts(reason)
        elif not gives_reasons:
            continue
        elif isinstance(node, ast.Return | ast.Yield) and node.value and not _error(node.value):
            yield from _texts(node.value)
        elif isinstance(node, ast.Raise) and node.exc and not _error(node.exc):
            yield from _texts(node.exc)
        elif isinstance(node, ast.Assign) and (_error(node.value) or type(node.value) is ast.Dict):
            continue  # found as a call; of what to do, or where
        elif isinstance(node, ast.Assign) and not _ADVICE.search(ast.unparse(node.targets[0])):
            yield from _texts(node.value)


def told(text: str) -> str:
    """What is looked for of a text: how the longest piece before the advice begins.

    Empty where no piece of it has three words: such a text is a part of another.
    """
    pieces = (each.strip(" :,.()'\"") for each in text.partition(";")[0].split(_ANY))
    longest = max(pieces, key=len)
    words = longest.split()
    return " ".join(words[:_WORDS]) if len(words) >= 3 else ""


def page() -> str:
    return " ".join(PAGE.read_text().replace("``", " ").split())


class TroubleshootingTest(unittest.TestCase):
    def test_each_error_has_its_entry(self) -> None:
        described = page()
        lacking = {}
        found = 0
        for module in sorted(PACKAGE.rglob("*.py")):
            if module.relative_to(PACKAGE).parts[0] == "cmd":
                continue
            for text in errors(module):
                if looked_for := told(text):
                    found += 1
                    if looked_for not in described:
                        lacking[looked_for] = module.name
        self.assertGreater(found, 100)
        self.assertEqual({}, lacking, f"{PAGE.name} has no entry for these")

    def test_each_kind_of_error_has_its_entry(self) -> None:
        described = page()
        for name, error in _ERRORS.items():
            if not (parameters := _parameters(error)):
                continue  # a kind of kinds
            text = told(str(error(*(_ANY for _ in parameters))))
            with self.subTest(name):
                self.assertEqual(text, text if text in described else "no entry for it")

    def test_what_is_looked_for(self) -> None:
        text = f"group {_ANY} has devices that are not its own, but others'; mend that"
        self.assertEqual("has devices that are not its", told(text))
        self.assertEqual("", told(f"{_ANY} of {_ANY}"))
        self.assertNotIn("it is haunted by something", page())
