# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import json
import os
import pathlib
from typing import Any

import yaml
from hypothesis import strategies as st
from lxml import etree

from nova_gpu.core import exception
from nova_gpu.host.container import cdi, contents
from tests.fixtures import cdi as specifications
from tests.fixtures import damage, hosts
from tests.fixtures.bases import fuzz as base

UID = os.getuid()

_PATHS = st.sampled_from(["/dev/nvidia0", "/", "//", "/dev/../etc", "/etc/x"]) | base.TEXT
_ODD = base.JSON | _PATHS | st.sampled_from([2**63, -1, 1e308, float("nan"), "v1.1.0", "a" * 5000])
# YAML has ways to say what no JSON can.
_YAML = st.sampled_from(
    [
        "!!bool maybe",
        "!!int ''",
        "!!float ''",
        "!!timestamp soon",
        "!!binary '%'",
        "!!python/object/apply:os.abort []",
        "!!set {a: b}",
        "2001-99-99",
        "&a [*a]",
        "{1: 2, a: 3}",
        "{[a]: b}",
        "? [1]\n: 2",
        "<<: 1",
    ]
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        paths += _places(inner, (*path, key))
    return paths


class CDITest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.build("fermi-8", self.root / "host", nodes=hosts.nodes.Nodes.FILES)
        self.spec = specifications.nvidia(self.root / "driver", [4])
        self.places = _places(self.spec)
        self.folder = self.host.roots.cdi_spec_dirs[0]

    def changed(self, changes: list[tuple[int, Any]]) -> Any:
        """The specification with other values at some of its places, or another key there"""
        document = copy.deepcopy(self.spec)
        for number, value in changes:
            *path, last = self.places[number % len(self.places)]
            place: Any = document
            try:
                for key in path:
                    place = place[key]
                place[value if value in ("typo", "type") else last] = value
            except (TypeError, LookupError):
                pass  # an earlier change took this place away
        return document

    def check(self, path: pathlib.Path) -> None:
        before = base.open_files()
        try:
            devices = cdi.load(path, UID)
        except exception.InvalidCDISpec as error:
            self.assertEqual(str(path), error.path)
        else:
            self.assertTrue(devices)
            for device in devices:
                self.check_guest(device.edits)
        self.assertEqual(before, base.open_files())

    def check_guest(self, edits: cdi.Edits) -> None:
        """All of it can stand in a domain's XML, and be asked of the host."""
        texts = [text for node in edits.nodes for text in (node.path, node.host_path)]
        texts += [text for mount in edits.mounts for text in (mount.source, mount.target)]
        texts += [text for pair in (*edits.env, *edits.links) for text in pair]
        for text in texts:
            etree.Element("text", value=text)
            os.fsencode(text)
        self.assertTrue(all(node.path.startswith("/") for node in edits.nodes))

    @base.fuzzed(share=0.5, changes=st.lists(st.tuples(st.integers(0, 10**6), _ODD), max_size=3))
    def test_changed_json(self, changes: list[tuple[int, Any]]) -> None:
        path = self.folder / "spec.json"
        path.write_text(json.dumps(self.changed(changes)))
        self.check(path)

    @base.fuzzed(share=0.5, place=st.integers(0, 10**6), odd=_YAML)
    def test_changed_yaml(self, place: int, odd: str) -> None:
        path = self.folder / "spec.yaml"
        text = yaml.safe_dump(self.changed([(place, "HERE")]), default_flow_style=True)
        path.write_text(text.replace("HERE", f" {odd} "))
        self.check(path)

    @base.fuzzed(
        content=st.binary(max_size=200) | base.JSON.map(json.dumps).map(str.encode),
        suffix=st.sampled_from([".json", ".yaml"]),
    )
    def test_anything_else(self, content: bytes, suffix: str) -> None:
        path = self.folder / f"spec{suffix}"
        path.write_bytes(content)
        self.check(path)

    @base.fuzzed(harm=damage.HARMS, suffix=st.sampled_from([".json", ".yaml"]))
    def test_what_is_no_file(self, harm: damage.Harm, suffix: str) -> None:
        path = self.folder / f"spec{suffix}"
        specifications.save(path, self.spec)
        with damage.done(path, harm):
            self.check(path)

    @base.fuzzed(
        share=0.02, depth=st.integers(1, 30_000), opening=st.sampled_from(["[", '{"a":', "- "])
    )
    def test_deep(self, depth: int, opening: str) -> None:
        for suffix in (".json", ".yaml"):
            path = self.folder / f"spec{suffix}"
            path.write_text('{"cdiVersion": ' + opening * depth)
            self.check(path)
            path.write_text('{"cdiVersion": ' + "[" * (depth % 900) + "]" * (depth % 900) + "}")
            self.check(path)

    @base.fuzzed(share=0.2, levels=st.integers(1, 40), width=st.integers(2, 9))
    def test_what_unfolds_to_more_than_there_is_memory(self, levels: int, width: int) -> None:
        lines = ["cdiVersion: &a0 [x]"]
        for level in range(levels):
            aliases = ", ".join([f"*a{level}"] * width)
            lines.append(f"k{level}: &a{level + 1} [{aliases}]")
        path = self.folder / "spec.yaml"
        path.write_text("\n".join([*lines, f"kind: *a{levels}", "devices: []"]))
        self.check(path)

    @base.fuzzed(
        share=0.5, changes=st.lists(st.tuples(st.integers(0, 10**6), _ODD), min_size=1, max_size=2)
    )
    def test_a_guest_gets_nodes_or_a_reason(self, changes: list[tuple[int, Any]]) -> None:
        (self.folder / "spec.yaml").unlink(missing_ok=True)
        (self.folder / "spec.json").write_text(json.dumps(self.changed(changes)))
        gpu = self.host.gpus()[0]
        try:
            edits = contents.contents([gpu], self.host.roots, self.root / "libraries", UID)
        except (exception.DeviceUnavailable, exception.GuestFilesUnavailable):
            return
        self.assertIn("/dev/nvidia4", edits.nodes)
        self.assertNotIn("/dev/nvidia0", edits.nodes)
