"""Instructions beside times: the same on every run and every machine, however busy. By valgrind's callgrind, where it
is installed.

As a program (``python -m tests.benchmarks.instructions stock|kvwatch TIMES``) it reads a page of eight engines so
often; what a reading costs is the difference between two such programs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.normalise import PageNormaliser
from tests.benchmarks.rows import Row
from tests.benchmarks.test_parse import BUDGET, eight_engines
from tests.support.replica.running import ROOT

_COLLECTED = re.compile(r"Collected : (\d+)")


def counted() -> Iterator[Row]:
    """Instructions of a page read and normalised, against the stock parser's."""
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: no instructions are counted", file=sys.stderr)
        return
    stock, ours = _each("stock", 1), _each("kvwatch", 8)
    detail = f"stock parser {stock / 1e6:.0f} million, kvwatch {ours / 1e6:.1f} million instructions"
    yield Row("the same by instructions", stock / ours, "×", detail, BUDGET, at_least=True)


def _each(what: str, more: int) -> float:
    """Instructions of one more reading."""
    return (_of(what, 1 + more) - _of(what, 1)) / more


def _of(what: str, times: int) -> int:
    tool = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    program = (sys.executable, "-m", "tests.benchmarks.instructions", what, str(times))
    # Hashes decide how sets collide: the same ones, so that the difference is the reading alone.
    done = subprocess.run(
        (*tool, *program), cwd=ROOT, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True
    )
    found = _COLLECTED.search(done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def _work(what: str, times: int) -> None:
    text = eight_engines()
    bodies = [text.encode(), text.replace("1.0\n", "2.0\n").encode()]
    interpreter = PageNormaliser(Vocabulary(), "vllm")
    if what == "kvwatch":
        for body in bodies * 2:  # remembered from here on
            interpreter.read(body)
    for n in range(times):
        if what == "kvwatch":
            interpreter.read(bodies[n % 2])
        else:
            list(text_string_to_metric_families(text))


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
