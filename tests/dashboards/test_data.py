"""Every query of every dashboard, asked of a real Prometheus that a kvwatch filled from recorded vLLM servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kvwatch.mixin.markdown_tables import table
from tests.dashboards.filling import Filled, Watched, facts_of, filled
from tests.dashboards.grafana import FILES, Asked, load, panels, queries, variables
from tests.dashboards.grafana import filled as written

#: Recorded servers by what their column is called; the newest has whatever any recording shows.
VERSIONS = {
    "v0 0.8.5": ("0.8.5-v0--c-kv-saturation", "0.8.5-v0-hidden--e-shared-prefix"),
    "v1 0.10.2": (
        "0.10.2--e-shared-prefix",
        "0.10.2--x-engine-died-while-saturated",
    ),
    "v1 0.32.0": (
        "0.32.0--c-kv-saturation",
        "0.32.0--e-shared-prefix",
        "0.32.0--l-admission-limit",
        "0.32.0--killed-under-pressure",
    ),
}
NEWEST = "v1 0.32.0"
OLD = ("v0 0.8.5", "v1 0.10.2")
#: Queries without data: a piece of the expression, the releases, and why. Each is needed, or the test fails.
WITHOUT: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "external_prefix_cache",
        (*VERSIONS,),
        "no recorded server had a KV connector, so nothing was looked up there",
    ),
    ("kv_offload_", (*VERSIONS,), "no recorded server offloaded KV"),
    ("spec_decode", (*VERSIONS,), "no recorded server drafted a token"),
    ("core_signal_missing", (*VERSIONS,), "no core signal is missing in these releases"),
    ("gpu_", OLD, "recorded on CPUs; the newest has a page of a DCGM exporter beside it"),
    ("engine_restarts_total", OLD, "no restart was recorded of these releases"),
    ("_up{", ("v0 0.8.5",), "no recorded server of this release became unreachable"),
    ("requests_waiting_by_reason", OLD, "vLLM counts it since 0.20"),
    ("admission_rejections_total", OLD, "vLLM counts it since 0.32"),
    ("prompt_tokens_by_source_total", OLD, "vLLM counts it since 0.16"),
    ("prompt_tokens_reused_ratio", OLD, "vLLM counts it since 0.16"),
    ("prefix_cache_hit_tokens_total", ("v0 0.8.5",), "v0 has no counters of its prefix cache"),
    ("prefix_cache_queried_tokens_total", ("v0 0.8.5",), "v0 has no counters of its prefix cache"),
    ("prefix_cache_hit_ratio_trusted", ("v0 0.8.5",), "v0 has no counters of its prefix cache"),
    (
        "prefix_cache_lifetime_hit_ratio",
        ("v1 0.10.2", "v1 0.32.0"),
        "v0 only, where its hidden metrics are shown",
    ),
)


def asked_of() -> list[Watched]:
    return [
        Watched(
            f"{version}/{recording}",
            recording,
            recording,
            facts_of(recording, version.split()[-1]),
            gpu=version == NEWEST,
        )
        for version, recordings in VERSIONS.items()
        for recording in recordings
    ]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filled(tmp_path_factory.mktemp("dashboards"), asked_of()) as found:
        yield found


def answered(given: Filled, expr: str) -> bool:
    """Whether the query gives a number, at any moment of what was recorded."""
    sent: dict[str, str | float] = {"query": expr, "start": given.start, "end": given.end, "step": 5}
    answer: dict[str, Any] = given.client.get("/api/v1/query_range", params=sent).json()
    assert answer["status"] == "success", f"{expr}: {answer}"
    return any(value != "NaN" for one in answer["data"]["result"] for _, value in one["values"])


def reasons(query: Asked, version: str) -> list[str]:
    return [why for piece, versions, why in WITHOUT if piece in query.expr and version in versions]


def test_every_query_has_data_in_every_generation_or_a_reason(
    prometheus: Filled, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query without data in a release is on the list with the reason, and the list says nothing else."""
    rows, missing, needed = [], [], Counter[str]()
    unexpected: list[str] = []
    for path in FILES:
        board = load(path)
        every = list(queries(board))
        counts = Counter[str]()
        for query in every:
            for version in VERSIONS:
                chosen = dict.fromkeys(("instance", "instance_a", "instance_b"), f"{version}/.+")
                expr = written(query.expr, variables(board, chosen, __range=f"{prometheus.seconds}s"))
                why = reasons(query, version)
                if answered(prometheus, expr):
                    counts[version] += 1
                elif why:
                    missing.append((query, version, why[0]))
                    needed.update(why)
                else:
                    unexpected.append(f"{version}: {query}")
        rows.append(
            [
                board["uid"],
                str(len(list(panels(board)))),
                str(len(every)),
                *(str(counts[one]) for one in VERSIONS),
            ]
        )
    with capsys.disabled():
        print(
            "\n\n"
            + table(["dashboard", "panels", "queries", *(f"with data: {one}" for one in VERSIONS)], rows)
        )
        print("\nwithout data:")
        for (name, panel, ref, reason), releases in _by_query(missing).items():
            print(f"  {name}, {panel}, {ref}: {', '.join(releases)} ({reason})")
    assert not unexpected, "queries without data:\n" + "\n".join(unexpected)
    assert {why for _, _, why in WITHOUT} == needed.keys()


def _by_query(missing: list[tuple[Asked, str, str]]) -> dict[tuple[str, str, str, str], list[str]]:
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for query, version, why in missing:
        found.setdefault((query.dashboard, query.panel, query.query, why), []).append(version)
    return found
