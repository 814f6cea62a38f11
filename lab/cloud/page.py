# SPDX-License-Identifier: Apache-2.0
"""Reads the commands on a page of the documentation, and the output that the page shows for each.

They are in blocks of the directive ``code-block:: console``. A line that begins with a prompt
(``root@compute# nova-gpu list``) is a command; one that ends with a backslash continues on the next
line. The lines below it are its whole output, with three dots for text that differs from cloud to
cloud; without such lines any output is right.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence

DOTS = "..."
_DIRECTIVE = re.compile(r"\s*\.\. (?:code-block|code|sourcecode|prompt)::\s*(\S*)")
_PROMPT = re.compile(r"([\w-]+@[\w-]+[#$])(?: (.*))?")
_SCRIPT = re.compile(
    r"^\.\. (?:code-block:: shell|literalinclude:: (\S+))\n((?: .*\n|\n)+)", re.MULTILINE
)


class Malformed(ValueError):
    """The error that a block cannot be run; in which line, and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command on the page.

    ``line`` is its first line on the page, from 1; ``text`` is as on the page, and may have several
    lines; ``output`` has the lines that the page shows below it.
    """

    line: int
    prompt: str
    text: str
    output: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    number: int
    line: int
    commands: tuple[Command, ...]


def read(path: pathlib.Path, prompts: Collection[str]) -> list[Block]:
    """Return the blocks of the page at *path*, in their order."""
    try:
        return parse(path.read_text(), prompts)
    except Malformed as error:
        raise Malformed(f"{path.name}: {error}") from error


def parse(text: str, prompts: Collection[str]) -> list[Block]:
    """Return the blocks of a page with this text, in their order."""
    lines = text.splitlines()
    blocks: list[Block] = []
    for number, line in enumerate(lines, 1):
        directive = _DIRECTIVE.match(line)
        if directive and directive[1] == "console":
            commands = _commands(_content(lines, number), prompts)
            blocks.append(Block(len(blocks) + 1, number, tuple(commands)))
        elif directive or (line.endswith("::") and not line.lstrip().startswith("..")):
            raise Malformed(
                f"line {number}: a block that is not run; use `code-block:: console` for "
                "commands, or a literalinclude of the file that it shows"
            )
    if not blocks:
        raise Malformed("the page has no `code-block:: console`")
    return blocks


def scripts(path: pathlib.Path, title: str) -> list[str]:
    """Return the texts of the shell blocks in the section *title* of a page, in their order.

    A block may be part of a file that the page includes (literalinclude).
    """
    pattern = rf"^{title}\n=+\n((?:.*\n)*?)(?=\S.*\n==+\n|\Z)"
    section = re.search(pattern, path.read_text(), re.MULTILINE)
    blocks = _SCRIPT.finditer(section[1]) if section else ()
    scripts_ = [_script(path, block[1], block[2]) for block in blocks]
    if not scripts_:
        raise Malformed(f"{path.name} has no section {title} with a shell block")
    return scripts_


def _script(path: pathlib.Path, included: str | None, indented: str) -> str:
    if not included:
        return textwrap.dedent(indented).strip() + "\n"
    text = (path.parent / included).read_text()
    options = dict(re.findall(r":([\w-]+): (.*)", indented))
    return text.partition(f"{options['start-after']}\n")[2].partition(options["end-before"])[0]


def _content(lines: Sequence[str], directive: int) -> list[tuple[int, str]]:
    """Return number and text of the lines that are indented below the line *directive*."""
    indented = []
    for line in lines[directive:]:
        if line and not line[0].isspace():
            break
        indented.append(line)
    texts = textwrap.dedent("\n".join(indented)).splitlines()
    content = [(number, text) for number, text in enumerate(texts, directive + 1) if text.strip()]
    if not content:
        raise Malformed(f"line {directive}: nothing is indented below this directive")
    return content


def _commands(content: Sequence[tuple[int, str]], prompts: Collection[str]) -> Iterator[Command]:
    rest = list(content)
    while rest:
        number, text = rest.pop(0)
        match = _PROMPT.fullmatch(text)
        if match is None:
            raise Malformed(
                f"line {number}: {text!r} is no command: it begins with none of the prompts "
                + ", ".join(sorted(prompts))
            )
        prompt, command = match[1], match[2] or ""
        if prompt not in prompts:
            raise Malformed(
                f"line {number}: the prompt {prompt} is none of {', '.join(sorted(prompts))}"
            )
        while command.endswith("\\"):
            if not rest or _PROMPT.fullmatch(rest[0][1]):
                raise Malformed(f"line {number}: the command ends with a backslash")
            command += "\n" + rest.pop(0)[1]
        if not command.strip():
            raise Malformed(f"line {number}: a prompt without a command")
        output = []
        while rest and not _PROMPT.fullmatch(rest[0][1]):
            output.append(rest.pop(0)[1])
        yield Command(number, prompt, command, tuple(output))


def difference(expected: Sequence[str], printed: str) -> str | None:
    """Return how the output *printed* differs from the page's lines *expected*; ``None`` if equal.

    Widths of columns and empty lines do not count, and any output equals no lines.
    """
    if not expected:
        return None
    text = "".join(f"{_plain(line)}\n" for line in printed.splitlines() if line.strip())
    pattern = ""
    for line in expected:
        pattern += _pattern(line)
        if not re.match(pattern, text):
            return f"its output lacks the line `{line.strip()}`, or has others before it"
    if not re.fullmatch(pattern, text):
        return f"its output goes on after `{expected[-1].strip()}`, with which the page ends it"
    return None


def _plain(line: str) -> str:
    return re.sub(r"-{2,}", "--", " ".join(line.split()))


def _pattern(line: str) -> str:
    if line.strip() == DOTS:
        return r"(?:.*\n)*?"
    return ".*".join(re.escape(part) for part in _plain(line).split(DOTS)) + r"\n"
