# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import re

import fixtures
import testtools

from lab.cloud import compute, guide, page, settings

ROOT = settings.ROOT
_PROMPTS = ("root@compute#", "demo@controller$")
_PAGE = """\
Title
=====

Something is said.

.. code-block:: console

   root@compute# nova-gpu list
   | Address | Offered |
   ...
   root@compute# cat a \\
       b

.. literalinclude:: sample

.. code-block:: console

   demo@controller$ openstack gpu usage

The end.
"""


class ParseTest(testtools.TestCase):
    def test_malformed(self) -> None:
        command = "root@compute# nova-gpu list"
        for reason, before, after in (
            ("line 8: 'nova-gpu list' is no command", command, "nova-gpu list"),
            ("line 8: '$ nova-gpu list' is no command", command, "$ nova-gpu list"),
            ("line 8: the prompt root@other# is none of", command, "root@other# nova-gpu list"),
            ("line 8: a prompt without a command", command, "root@compute#"),
            ("line 11: the command ends with a backslash", "       b\n", ""),
            ("line 16: nothing is indented", "   demo@controller$ openstack gpu usage\n", ""),
            ("line 6: a block that is not run", ":: console", ":: bash"),
            ("line 6: a block that is not run", ":: console", "::"),
            ("line 4: a block that is not run", "Something is said.", "Something is said::"),
        ):
            self.assertIn(before, _PAGE)
            text = _PAGE.replace(before, after, 1)
            error = self.assertRaises(page.Malformed, page.parse, text, _PROMPTS)
            self.assertIn(reason, str(error))


class DifferenceTest(testtools.TestCase):
    _PRINTED = (
        "+------+------+\n| Name | GPUs |\n+------+------+\n| pair |    2 |\n+------+------+\n"
    )

    def test_same(self) -> None:
        for expected in (
            (),
            tuple(self._PRINTED.splitlines()),
            # Wider columns, for longer names.
            ("+---+---+", "| Name    | GPUs |", "+----+--+", "| pair | 2 |", "+--+--+"),
            ("...", "| pair | ... |", "..."),
            ("...", "| pa... | 2 |", "+------+------+"),
            ("...",),
        ):
            self.assertIsNone(page.difference(expected, self._PRINTED), expected)

    def test_other(self) -> None:
        for line, expected in (
            ("| pair | 3 |", ("...", "| pair | 3 |", "...")),
            ("| Name | GPUs |", ("| Name | GPUs |", "...")),
            # The right lines, in another order.
            ("| Name | GPUs |", ("...", "| pair | 2 |", "...", "| Name | GPUs |", "...")),
            # A part of a line is not the line.
            ("| pair", ("...", "| pair", "...")),
            # Dots are no way to leave lines out of the midst of another.
            ("| Name ... 2 |", ("...", "| Name ... 2 |", "...")),
        ):
            found = page.difference(expected, self._PRINTED)
            self.assertIn(f"lacks the line `{line}`", found or "", expected)


class FirstBootTest(testtools.TestCase):
    """The page itself."""

    def setUp(self) -> None:
        super().setUp()
        self.text = guide.PAGE.read_text()
        self.commands = [
            command for block in guide.blocks_of(guide.PAGE) for command in block.commands
        ]
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.lab = settings.Lab(self.folder, settings.Ports(), "secret", computes=2)

    def test_options_are_the_samples(self) -> None:
        """What is shown is the file that is added, and no option stands on the page itself."""
        shown = re.findall(r"^\.\. literalinclude:: (\S+)", self.text, re.MULTILINE)
        files = [(guide.PAGE.parent / each).resolve() for each in shown]
        added = re.findall(r"cat (\S+) >> /etc/nova/nova\.conf", self.text)
        self.assertEqual([ROOT / each for each in added], files)
        samples = ["nova-compute.conf.sample", "nova-scheduler.conf.sample"]
        self.assertEqual([ROOT / "etc/nova" / each for each in samples], files)
        options = {
            line.partition("=")[0].strip("# ")
            for file in files
            for line in file.read_text().splitlines()
            if re.match(r"#?\w+ = ", line)
        }
        self.assertIn("compute_driver", options)
        lines = re.findall(r"^\s*(\w+)\s*=\s", self.text, re.MULTILINE)
        self.assertEqual([], [name for name in lines if name in options])

    def test_nothing_is_the_hosts_own(self) -> None:
        """No path of the pages' is left that the lab would read or write on the machine: where a
        command runs on a compute host, /etc/nova is that host's.
        """
        table = guide.places(self.lab)
        pages = [block for path in guide.PAGES for block in guide.blocks_of(path)]
        self.assertIn(str(compute.ETC), compute.libvirt(self.lab.hosts[0]).covers)
        for command in (command for block in pages for command in block.commands):
            done = guide.translated(command.text, command.prompt, table)
            own = ("/opt/",) if "@compute" in command.prompt else ("/opt/", "/etc/nova")
            for path in own:
                self.assertNotIn(path, done.replace(f"{self.folder}/etc/nova", ""))
