# SPDX-License-Identifier: Apache-2.0
"""Messages: the page of the search finds the entry of a whole text that somebody pastes there.

Sphinx's own search finds pages with all words of a query, so not those of a text with names and
numbers in it. Each entry of the pages on troubleshooting becomes a pattern without them.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

_SCRIPT = "messages.js"
_PAGES = "admin/troubleshooting-"
# An entry with fewer fixed words would be found in texts of other kinds.
_WORDS = 3


def pattern(entry: str) -> str:
    """Return a regular expression for texts of this *entry*, in which dots stand for anything."""
    fixed = [re.escape(part.strip()) for part in " ".join(entry.split()).split("...")]
    text = ".*".join(fixed).strip(":")
    return re.sub(r"\d+", r"\\d+", re.sub("v?GPUs?", "v?GPUs?", text)).replace(r"\ ", " ")


def is_distinct(entry: str) -> bool:
    """Return whether *entry* has enough fixed words to be found by."""
    return len(re.findall(r"[A-Za-z]{2,}", entry)) >= _WORDS


def _note(app: Sphinx, doctree: nodes.document) -> None:
    """Give each entry of the page an anchor, and note its texts."""
    from docutils import nodes  # tests of patterns run where it is not installed

    docname = app.env.docname
    of_page = app.env.metadata[docname]["messages"] = []
    if not docname.startswith(_PAGES):
        return
    for number, term in enumerate(doctree.findall(nodes.term)):
        if texts := [" ".join(literal.astext().split()) for literal in term.findall(nodes.literal)]:
            anchor = f"message-{number}"
            term["ids"].append(anchor)
            of_page += [(text, anchor) for text in texts if is_distinct(text)]


def _rows(app: Sphinx) -> Iterator[tuple[str, str, str]]:
    for docname, metadata in sorted(app.env.metadata.items()):
        for text, anchor in metadata.get("messages", ()):
            yield pattern(text), text, f"{app.builder.get_target_uri(docname)}#{anchor}"


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        rows = sorted(_rows(app), key=lambda row: -len(row[0]))
        script = pathlib.Path(__file__).with_name(_SCRIPT).read_text()
        target = pathlib.Path(app.outdir, "_static", _SCRIPT)
        target.write_text(f"const MESSAGES = {json.dumps(rows)};\n{script}")


def _load(app: Sphinx, page: str, *_: object) -> None:
    if page == "search":
        app.add_js_file(_SCRIPT)  # for this page alone


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _note)
    app.connect("html-page-context", _load)
    app.connect("build-finished", _write)
