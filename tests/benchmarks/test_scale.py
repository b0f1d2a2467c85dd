"""Cost is linear: what an engine costs does not grow with how many there are, nor with how long they were watched."""

from __future__ import annotations

import math
from time import process_time

import pytest

from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import State, initial
from kvwatch.core.model.outcome import Pace, Scrape
from tests.benchmarks.test_parse import page_of


def watched(engines: int, state: State, seconds: int) -> tuple[State, float]:
    """After so many pages, one a second, and the processor seconds of the cheapest of the last ten."""
    bodies = [page_of(engines).encode(), page_of(engines).replace("1.0\n", "2.0\n").encode()]
    cheapest, now = math.inf, state.now or 0.0
    for n in range(seconds):
        pace = Pace.FULL if n == 0 else Pace.FAST
        began = process_time()
        state, _ = advance(state, Scrape(bodies[n % 2], now + n + 1.0, pace=pace), now + n + 1.0)
        if n >= seconds - 10:
            cheapest = min(cheapest, process_time() - began)
    return state, cheapest


@pytest.mark.benchmark
def test_an_engine_among_many_costs_what_one_of_few_does() -> None:
    _, few = watched(4, initial("vllm"), 20)
    _, many = watched(48, initial("vllm"), 20)
    assert many / 48 <= 1.5 * few / 4


@pytest.mark.benchmark
def test_a_sample_costs_after_half_an_hour_what_it_does_after_ten_minutes() -> None:
    """Windows fill in the first minutes; what is older is not looked at again."""
    state, before = watched(1, initial("vllm"), 700)
    _, after = watched(1, state, 1200)
    assert after <= 1.3 * before
