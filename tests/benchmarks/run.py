"""``make bench``: every measure, one table, one line more in the history. ``--only`` takes a few, by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tests.benchmarks import measures
from tests.benchmarks.instructions import counted
from tests.benchmarks.rows import HISTORY, Row, remember, table


def main() -> int:
    """Measures and prints; exit code 0 whatever the budgets say: the table tells."""
    options = argparse.ArgumentParser(description="What watching costs, against its budgets.")
    options.add_argument("--only", action="append", default=[], metavar="MEASURE")
    options.add_argument("--peers", type=Path, help="a bin folder with vmm and vllm-doctor")
    chosen = options.parse_args()
    peers = {
        name: chosen.peers / name
        for name in ("vmm", "vllm-doctor")
        if chosen.peers is not None and (chosen.peers / name).exists()
    }
    every: dict[str, Callable[[], Iterator[Row]]] = {
        "parsing": measures.parsing,
        "instructions": counted,
        "server": lambda: map(measures.inside_the_server, (1, 8)),
        "beside": partial(measures.beside_others, peers),
        "serving": measures.serving,
        "engines": measures.by_engines,
        "hour": measures.an_hour,
    }
    unknown = [name for name in chosen.only if name not in every]
    if unknown:
        options.error(f"no measure {unknown[0]!r}; there are {', '.join(every)}")
    rows: list[Row] = []
    for name in tqdm(chosen.only or every, disable=not sys.stderr.isatty(), unit="measure"):
        for row in every[name]():
            rows.append(row)
            print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
    remember(rows)
    print(table(rows))
    print(f"\nremembered in {HISTORY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
