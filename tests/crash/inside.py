# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.inside``: the run, in libvirtd's mount namespace."""

from __future__ import annotations

from typing import Any

from tests.cloud import running


class Result(running.Result):
    """Says at once what went wrong: the whole run takes hours."""

    def _exc_info_to_string(self, *args: Any) -> str:
        text: str = super()._exc_info_to_string(*args)  # type: ignore[misc]
        self.stream.write(text)
        return text


def main() -> int:
    stream = running.begin()
    from tests.crash import run

    return 0 if running.run(run.run, stream, Result) else 1


if __name__ == "__main__":
    running.leave(main)
