# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import compute, guide, page, settings


class DifferenceTest(testtools.TestCase):
    _PRINTED = (
        "+------+------+\n| Name | GPUs |\n+------+------+\n| pair |    2 |\n+------+------+\n"
    )

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

    def test_nothing_is_the_hosts_own(self) -> None:
        """No path of the pages' is left that the lab would read or write on the machine: where a
        command runs on a compute host, /etc/nova is that host's.
        """
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        lab = settings.Lab(folder, settings.Ports(), "secret", computes=2)
        table = guide.places(lab)
        pages = [block for path in guide.PAGES for block in guide.blocks_of(path)]
        self.assertIn(str(compute.ETC), compute.libvirt(lab.hosts[0]).covers)
        for command in (command for block in pages for command in block.commands):
            done = guide.translated(command.text, command.prompt, table)
            own = ("/opt/",) if "@compute" in command.prompt else ("/opt/", "/etc/nova")
            for path in own:
                self.assertNotIn(path, done.replace(f"{folder}/etc/nova", ""))
