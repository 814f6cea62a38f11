# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from tools.testing import environment


class CompileTest(testtools.TestCase):
    def test_all_that_is_python(self) -> None:
        """By Debian's Python where there is one: its folders are others than Python's own."""
        found = "/usr/bin/python3"
        python = found if os.access(found, os.X_OK) else sys.executable
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        made = [python, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(made, check=True)
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "thing").mkdir()
        (site / "thing/__init__.py").write_text("VALUE = 1\n")
        (site / "thing/template.py").write_text("print 'of Python 2'\n")

        (site / "thing/tests").mkdir()
        (site / "thing/tests/test_thing.py").write_text("VALUE = 1\n")

        def compiled() -> list[str]:
            return sorted(path.name.partition(".")[0] for path in site.rglob("*.pyc"))

        environment.compile_modules(str(folder / "bin/python"), tests=False)
        self.assertEqual(["__init__"], compiled())
        environment.compile_modules(str(folder / "bin/python"))
        self.assertEqual(["__init__", "test_thing"], compiled())
