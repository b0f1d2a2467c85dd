"""Budget: parsing and normalising a full page of eight engines, against the stock parser alone on the same bytes.

Expected: the stock parser builds every sample of every family; kvwatch steps over two thirds of the page and
remembers the rest, so 30 times faster should hold with room. Both are measured in this run, by the processor time of
the cheapest of several runs.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.normalise import PageNormaliser

PAGE = Path(__file__).parents[1] / "captures" / "vllm-0.32.0" / "c-kv-saturation.jsonl.gz"
BUDGET = 30.0


def eight_engines() -> str:
    """A full page of eight engines."""
    return page_of(8)


def page_of(engines: int) -> str:
    """A real page, its engine's series as often as there are engines, as internal data parallelism shows them."""
    with gzip.open(PAGE, "rt", encoding="utf-8") as lines:
        body = str([json.loads(line) for line in lines][-2]["body"])
    out: list[str] = []
    for line in body.splitlines():
        if 'engine="0"' in line:
            out += [line.replace('engine="0"', f'engine="{rank}"') for rank in range(engines)]
        else:
            out.append(line)
    by_family: dict[str, list[str]] = {}
    family = ""
    for line in out:
        if line.startswith("# HELP"):
            family = line.split()[2]
        by_family.setdefault(family, []).append(line)
    return "\n".join(line for found in by_family.values() for line in found) + "\n"


def best(work: Callable[[], object], times: int) -> float:
    """Processor seconds of the cheapest of several runs, without garbage collection, as `timeit` measures: what that
    has to look through is what other tests left behind.

    Not seconds on the clock: on a busy machine a long run is always interrupted and a short one not, which made the
    stock parser look three times as slow as it is.
    """
    work()
    spent = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            start = process_time()
            work()
            spent.append(process_time() - start)
    finally:
        gc.enable()
    return min(spent)


def against_stock(turns: int) -> tuple[float, float]:
    """Processor seconds of the stock parser, and of reading and normalising, for a full page of eight engines.

    Both in turn, so that what else the host does at a time is not borne by one of them alone."""
    text = eight_engines()
    bodies = [text.encode(), text.replace("1.0\n", "2.0\n").encode()]
    interpreter = PageNormaliser(Vocabulary(), "vllm")
    assert len(interpreter.read(bodies[0]).engines) == 8
    stock = ours = math.inf
    for _ in range(turns):
        stock = min(stock, best(lambda: list(text_string_to_metric_families(text)), 3))
        ours = min(ours, best(lambda: [interpreter.read(body) for body in bodies], 15) / len(bodies))
    return stock, ours


@pytest.mark.benchmark
def test_parse_and_normalise_against_the_stock_parser(record_property: Callable[[str, object], None]) -> None:
    """A full page of eight engines costs at most a thirtieth of the stock parser on the same bytes."""
    stock, ours = against_stock(turns=6)
    ratio = stock / ours
    record_property("ratio", round(ratio, 1))
    print(
        f"\nstock parser {stock * 1e3:.2f} ms, kvwatch {ours * 1e3:.2f} ms: {ratio:.1f} x, budget {BUDGET:g} x"
    )
    assert ratio >= BUDGET
