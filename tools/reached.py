# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.reached OUTPUT MODULE...``: records which lines each test module reaches.

It runs in the environment of the suites. The output is a data file of coverage.py whose contexts
are the test modules; a module that fails is named, and its lines count all the same.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Sequence

import coverage


def main(arguments: Sequence[str]) -> int:
    """Run the test modules one after another in this process; return 0."""
    output, *modules = arguments
    measured = coverage.Coverage(
        data_file=output,
        config_file=False,
        source=["nova_gpu", "osc_gpu", "extensions"],
        messages=False,
    )
    # As the module's path in the tree, wherever that is
    measured.set_option("run:relative_files", True)
    measured.start()
    for number, module in enumerate(modules, start=1):
        measured.switch_context(module)
        suite = unittest.defaultTestLoader.loadTestsFromName(module)
        result = unittest.TestResult()
        suite.run(result)
        bad = len(result.failures) + len(result.errors)
        print(
            f"{number}/{len(modules)} {module}: {result.testsRun} tests, {bad} failed", flush=True
        )
    measured.stop()
    measured.save()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
