"""What a request costs the watched server, by what is asked for. Short; `make bench` measures whole watches.

The bounds here leave room for a busy machine; what the budgets are compared with is in the table of `make bench`.
"""

from __future__ import annotations

import math

import httpx
import pytest

from kvwatch.core.dialect.vllm import sample_names
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Pace, Scrape
from kvwatch.sidecar.polling.scrape import narrowed_url
from tests.benchmarks.costs import cpu_s
from tests.support.replica.running import replica


@pytest.mark.benchmark
@pytest.mark.parametrize(("engines", "most"), [(1, 0.3), (8, 0.2)])
def test_what_is_asked_every_second_costs_the_server_a_fraction_of_a_page(engines: int, most: float) -> None:
    """Of one engine some 0.16 of a whole page, of eight some 0.11."""
    with replica(engines=engines) as server, httpx.Client(timeout=60) as client:
        url = f"{server.url}/metrics"
        state, _ = advance(initial("vllm"), Scrape(client.get(url).content, 0.0), 0.0)
        names = sample_names(state.policy.vocabulary, state.exposed, Pace.FAST)

        def cost(asked: str) -> float:
            cheapest = math.inf
            for _ in range(3):
                before = cpu_s(server.process.pid)
                for _ in range(10):
                    client.get(asked).raise_for_status()
                cheapest = min(cheapest, cpu_s(server.process.pid) - before)
            return cheapest

        assert cost(narrowed_url(url, names)) / cost(url) <= most
