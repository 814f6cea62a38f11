# SPDX-License-Identifier: Apache-2.0
"""Directives for what the code says of itself: the reference cannot differ from it.

``.. nova-gpu-table:: metrics``, one of :data:`tables.TABLES`,
``.. nova-gpu-options:: nova-gpu``, one of :data:`commands.PROGRAMS`, and ``.. nova-gpu-report::``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata, OptionSpec

from . import commands, messages, report, tables


class _Generated(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        # Who builds the documentation again reads the page again where the code is another one.
        for name, module in tuple(sys.modules.items()):
            if name.startswith(("nova_gpu.", __package__)) and module.__file__:
                self.env.note_dependency(module.__file__)
        try:
            text = "\n".join(self.lines(self.arguments[0]))
        except KeyError as error:
            raise self.error(f"There is no {error}.") from error
        except ValueError as error:
            raise self.error(f"{self.arguments[0]}: {error}.") from error
        return self.parse_text_to_nodes(text)

    def lines(self, name: str) -> Iterator[str]:
        raise NotImplementedError


class TableDirective(_Generated):
    def lines(self, name: str) -> Iterator[str]:
        return tables.TABLES[name]().lines()


class OptionsDirective(_Generated):
    """``:ignored:`` are options that the page explains once for all commands."""

    option_spec: ClassVar[OptionSpec] = {"ignored": directives.unchanged_required}

    def lines(self, name: str) -> Iterator[str]:
        ignored = self.options.get("ignored", "").split(",")
        for command in commands.commands(name):
            yield from command.options(ignored)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("nova-gpu-table", TableDirective)
    app.add_directive("nova-gpu-options", OptionsDirective)
    app.add_directive("nova-gpu-report", report.ReportDirective)
    messages.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
