# SPDX-License-Identifier: Apache-2.0
"""Properties that hold of any input: what nobody has written yet, too.

In the unit suite each property is tried with the same few inputs every time.
``NOVA_GPU_FUZZ_EXAMPLES`` in the environment is another number of inputs. If it is larger than the
suite's, the inputs are others each time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
import hypothesis
from hypothesis import strategies as st
from oslotest import base

# The number of inputs of each property
EXAMPLES = "NOVA_GPU_FUZZ_EXAMPLES"
_SHORT = 30

# No reader may take longer for one input, nor more memory than so much above what the process has.
LONGEST_S = 10.0
MEMORY = 512 << 20

# Anything a text may have, also half of a surrogate pair, which JSON can say and UTF-8 cannot.
TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
LONG = st.text(st.characters(exclude_categories=()), max_size=5000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def fuzzed(
    *,
    share: float = 1.0,
    most: int | None = None,
    shrinks: bool = True,
    **strategies: st.SearchStrategy[Any],
) -> Callable[[Any], Any]:
    """Has a test method called with many inputs, each drawn from *strategies*.

    :param share: how many, of as many as others get: less where one takes long
    :param most: how many at most, however long the run
    :param shrinks: whether a smaller input may be found that shows the same; a seed has none
    """
    examples = int(os.environ.get(EXAMPLES, 0))

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def counted(self: Any, **inputs: Any) -> None:
            started = time.process_time()  # whatever else the machine does
            test(self, **inputs)
            if (took := time.process_time() - started) > LONGEST_S:
                raise AssertionError(f"it took {took:.1f} s")

        wanted = max(1, round((examples or _SHORT) * share))
        given = hypothesis.given(**strategies)(counted)
        return hypothesis.settings(
            max_examples=wanted if most is None else min(wanted, most),
            phases=list(hypothesis.Phase) if shrinks else [hypothesis.Phase.generate],
            derandomize=examples <= _SHORT,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )(given)

    return decorate


class FuzzTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        # A long run takes longer than any one test may.
        os.environ["OS_TEST_TIMEOUT"] = "0" if EXAMPLES in os.environ else "300"
        super().setUp()
        self.useFixture(fixtures.FakeLogger("nova_gpu", level=100))
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for folder in (self.root, self.root.parent):
            folder.chmod(0o755)  # another user reads here too (damage.another_user)

    def assertHarmless(self, text: str) -> None:
        """No line of *text* has a character that a terminal, a log or a page obeys."""
        for each in text.split("\n"):
            self.assertTrue(each.isprintable(), repr(each))

    def execute_example(self, run: Callable[[], Any]) -> Any:
        with bounded_memory():
            return run()


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Reading a huge file whole ends in MemoryError."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def open_files() -> int:
    """How many files this process has open"""
    return len(os.listdir("/proc/self/fd"))
