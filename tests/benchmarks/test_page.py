"""Budget: writing the page of eight engines holds up `/metrics` for less than a `/metrics` of its own takes.

The page is written in pieces, between which others have their turn, so the longest piece counts. Both are measured in
this run, on the processor's own clock, best of several, over ten minutes of history.
"""

from __future__ import annotations

from time import process_time

import pytest

from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Scrape
from kvwatch.sidecar.page.document import page_parts
from kvwatch.sidecar.serving.collector import registry_of
from kvwatch.sidecar.serving.metrics_text import Renderer
from kvwatch.sidecar.store import Store
from tests.benchmarks.test_parse import eight_engines
from tests.support.loopback import TurnedClock

SECONDS = 600
TIMES = 5


@pytest.mark.benchmark
def test_no_piece_of_the_page_takes_as_long_as_metrics() -> None:
    store, clock, body = Store(), TurnedClock(), eight_engines().encode()
    state = initial("vllm")
    for _ in range(SECONDS):
        clock.time += 1
        state, _ = advance(state, Scrape(body, clock.wall(), interval_s=1.0), clock.now())
    store.publish(state)
    registry, renderer = registry_of(store, clock), Renderer()

    def metrics() -> float:
        nonlocal state
        clock.time += 1
        state, _ = advance(state, Scrape(body, clock.wall(), interval_s=1.0), clock.now())
        store.publish(state)  # a page of the same state would be the one that is remembered
        start = process_time()
        renderer.choose("")[0](registry)
        return process_time() - start

    def longest_piece() -> float:
        longest, start = 0.0, process_time()
        for _ in page_parts(store, clock.now()):
            longest, start = max(longest, process_time() - start), process_time()
        return longest

    whole, piece = min(metrics() for _ in range(TIMES)), min(longest_piece() for _ in range(TIMES))
    print(f"\n/metrics {1000 * whole:.1f} ms, longest piece of the page {1000 * piece:.1f} ms")
    assert piece < whole
