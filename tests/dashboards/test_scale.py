"""How long the queries take when a Prometheus watches many servers.

By default 100 of them, against a bound for as many; `make scale` asks a thousand, within the bound for people.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.dashboards.filling import Watched, facts_of, pages, write
from tests.dashboards.grafana import FILES, Asked, filled, load, queries, variables
from tests.support.stack import prometheus

SATURATED = "0.32.0--c-kv-saturation"
#: Seconds for a query over 1,000 servers: what a person waits for a panel without leaving. In proportion for fewer,
#: but never less than what a busy machine takes for anything at all.
BOUND_S, LEAST_S = 10.0, 3.0
#: Pages of each server, so many seconds apart, as Prometheus would scrape them.
PAGES, EVERY_S = 12, 15


def names() -> set[str]:
    """The metrics that the dashboards ask for: others cost Prometheus nothing here."""
    return {
        name
        for path in FILES
        for one in queries(load(path))
        for name in re.findall(r"\bkvwatch_\w+", one.expr)
    }


def fleet(servers: int, end: float) -> Iterator[str]:
    """The saturated server many times over: the last pages of its recording, each server under its own name.

    The times are stretched to Prometheus' usual interval, so rates are too low, which changes no query's work.
    """
    wanted = names()
    server = Watched("host:9477", "server", SATURATED, facts_of(SATURATED, "0.32.0"), gpu=True)
    shown = [text for _, text in pages(server, end)][-PAGES:]
    for number, text in enumerate(shown):
        at = end - (PAGES - 1 - number) * EVERY_S
        lines = [line for line in text.splitlines() if line.partition("{")[0] in wanted]
        page = "".join(f"{line.rpartition(' ')[0]} {at:.3f}\n" for line in lines)
        for target in range(servers):
            model = f"model-{target % 20}"
            yield (
                page.replace('"host:9477"', f'"host-{target}:9477"')
                .replace('target="server"', f'target="server-{target}"')
                .replace('model_name="tiny-llama"', f'model_name="{model}"')
            )


@contextmanager
def watched(folder: Path, servers: int) -> Iterator[tuple[httpx.Client, float]]:
    (folder / "data").mkdir()
    end = float(int(time.time()) - 10)
    write(folder, fleet(servers, end))
    with (
        prometheus(folder, "127.0.0.1:9", interval="1h") as asked,
        httpx.Client(base_url=asked.url, timeout=120) as client,
    ):
        yield client, end


@pytest.mark.parametrize("servers", [100, pytest.param(1000, marks=pytest.mark.scale)])
def test_no_query_is_slow(
    servers: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    """Each as its panel asks it: tables and figures at one moment, graphs over all pages."""
    with watched(tmp_path, servers) as (client, end):
        took, answered = measured(client, end)
    slowest, query = took[0]
    record_property("slowest_query_s", round(slowest, 3))
    with capsys.disabled():
        print(f"\n{servers} servers, {len(took)} queries, {answered} with data; the slowest:")
        for seconds, one in took[:5]:
            print(f"  {seconds:.2f} s  {one.dashboard}, {one.panel}, {one.query}")
    assert answered > 0.8 * len(took)
    bound = max(BOUND_S * servers / 1000, LEAST_S)
    assert slowest < bound, f"{slowest:.1f} s: {query}"


def measured(client: httpx.Client, end: float) -> tuple[list[tuple[float, Asked]], int]:
    """Seconds of every query, the slowest first, and how many found something."""
    took: list[tuple[float, Asked]] = []
    answered = 0
    for path in FILES:
        board = load(path)
        values = variables(board, __rate_interval="60s", __range=f"{(PAGES - 1) * EVERY_S}s")
        for one in queries(board):
            now = one.kind in {"stat", "table", "bargauge"}
            when = (
                {"time": end} if now else {"start": end - (PAGES - 1) * EVERY_S, "end": end, "step": EVERY_S}
            )
            began = time.perf_counter()
            answer = client.get(
                f"/api/v1/{'query' if now else 'query_range'}",
                params={"query": filled(one.expr, values), **when},
            ).json()
            took.append((time.perf_counter() - began, one))
            assert answer["status"] == "success", f"{one}: {answer}"
            answered += bool(answer["data"]["result"])
    return sorted(took, key=lambda pair: -pair[0]), answered
