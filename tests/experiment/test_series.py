"""What a run gained, step by step, against the pages themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvwatch.core.judgement.policy import Policy
from kvwatch.experiment.measured_run import MeasuredRun, run_of
from kvwatch.experiment.series import ENGINE_SECONDS, RUNNING, SECONDS, SeriesBuilder, Totals, column
from kvwatch.recording import Record, RecordingError

Recorded = Callable[[str], MeasuredRun]
Pages = Callable[[str], list[Record]]
DATA_PARALLEL, RESTART, HEALTHY = "0.32.0--j-data-parallel-2", "0.32.0--i-restart", "0.32.0--b-healthy"


def on_page(record: Record, family: str) -> float:
    """The sum over all series of a family."""
    found = re.findall(rf"^vllm:{family}(?:\{{[^}}]*\}})? (\S+)$".encode(), record.body, re.MULTILINE)
    return sum(map(float, found))


def total(run: MeasuredRun, name: str) -> float:
    return run.series.totals().sum(name)


def run_from(records: list[Record]) -> MeasuredRun:
    return run_of(records, "r", Policy())


def test_over_the_engines_of_a_server_tokens_and_observations_are_added_up(
    recorded: Recorded, pages: Pages
) -> None:
    run, records = recorded(DATA_PARALLEL), pages(DATA_PARALLEL)
    assert run.engines == 2
    for family, name in (
        ("generation_tokens_total", "generation_tokens_total"),
        ("time_to_first_token_seconds_count", column("time_to_first_token_seconds", "count")),
        ("e2e_request_latency_seconds_count", column("e2e_request_latency_seconds", "count")),
        ("num_preemptions_total", "preemptions_total"),
    ):
        gained = on_page(records[-1], family) - on_page(records[0], family)
        assert gained > 0
        assert total(run, name) == pytest.approx(gained)
    assert total(run, ENGINE_SECONDS) == pytest.approx(2 * total(run, SECONDS))
    assert total(run, SECONDS) == pytest.approx(records[-1].t - records[0].t, abs=0.01)
    busiest = max(on_page(record, "num_requests_running") for record in records)
    assert run.peaks["requests_running"] == busiest
    assert total(run, RUNNING) / total(run, SECONDS) < busiest


def test_a_restart_and_the_time_without_answers_belong_to_no_step(recorded: Recorded, pages: Pages) -> None:
    run, records = recorded(RESTART), pages(RESTART)
    good = [record for record in records if record.status == 200]
    assert run.restarts == 1
    assert run.failed_scrapes == len(records) - len(good)
    started = next(
        i
        for i in range(1, len(good))
        if on_page(good[i], "generation_tokens_total") < on_page(good[i - 1], "generation_tokens_total")
    )
    before = on_page(good[started - 1], "generation_tokens_total") - on_page(
        good[0], "generation_tokens_total"
    )
    after = on_page(good[-1], "generation_tokens_total") - on_page(good[started], "generation_tokens_total")
    assert total(run, "generation_tokens_total") == pytest.approx(before + after)
    down = good[started].t - good[started - 1].t
    assert down > 20
    assert total(run, SECONDS) == pytest.approx(run.duration_s - down, abs=0.1)


def test_what_warms_up_is_not_compared(pages: Pages) -> None:
    records = pages(HEALTHY)
    whole = run_from(records)
    marked = [replace(record, warmup=i < 30) for i, record in enumerate(records)]
    run = run_from(marked)
    assert run.warmup_s == pytest.approx(records[30].t - records[0].t)
    assert run.duration_s == pytest.approx(records[-1].t - records[30].t)
    gained = on_page(records[-1], "generation_tokens_total") - on_page(records[29], "generation_tokens_total")
    assert total(run, "generation_tokens_total") == pytest.approx(gained)
    assert total(run, "generation_tokens_total") < total(whole, "generation_tokens_total")
    with pytest.raises(RecordingError, match="has only warm-up; record longer"):
        run_from([replace(record, warmup=True) for record in records])


def test_a_run_begins_when_the_server_first_answers(pages: Pages) -> None:
    records = pages(HEALTHY)
    refused = [Record(records[0].t - 10 + i, 0, error="refused", warmup=i < 5) for i in range(10)]
    late, plain = run_from([*refused, *records]), run_from(records)
    assert (late.failed_scrapes, late.scrapes, late.warmup_s) == (0, len(records), 0.0)
    assert late.series.totals().sums == pytest.approx(plain.series.totals().sums)
    broken = run_from(
        [*records[:20], replace(records[20], status=0, body=b"", error="refused"), *records[21:]]
    )
    assert broken.failed_scrapes == 1


def test_a_run_has_its_label(pages: Pages) -> None:
    first, *others = pages(HEALTHY)[:5]
    assert run_from([first, *others]).name == "r"
    assert run_from([replace(first, label="calm"), *others]).name == "calm"


def test_nothing_to_compare_is_said(pages: Pages) -> None:
    with pytest.raises(RecordingError, match="has no readable page of a vLLM server"):
        run_from([Record(1.0, 0, error="refused"), Record(2.0, 200, b"up 1\n")])
    with pytest.raises(RecordingError, match="has only warm-up"):
        run_from(pages(HEALTHY)[:1])


def test_steps_become_longer_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, pages: Pages, recorded: Recorded
) -> None:
    whole = recorded(HEALTHY).series
    assert np.diff(whole.ends).mean() == pytest.approx(1.0, abs=0.05)
    monkeypatch.setattr("kvwatch.experiment.series._MAX_STEPS", 20)
    few = run_from(pages(HEALTHY)).series
    assert 10 <= len(few.ends) <= 20
    assert few.ends[-1] == whole.ends[-1]
    assert few.totals().sums == pytest.approx(whole.totals().sums)


def test_regimes_hold_all_the_time_there_is(recorded: Recorded) -> None:
    run = recorded("0.32.0--c-kv-saturation")
    sums = run.series.totals().sums
    regimes = {name: value for name, value in sums.items() if name.startswith(column("regime", ""))}
    assert sum(regimes.values()) == pytest.approx(sums[ENGINE_SECONDS])
    assert regimes[column("regime", "kv_limited")] > 0.4 * sums[ENGINE_SECONDS]


def test_nothing_is_collected_of_nothing() -> None:
    assert SeriesBuilder().series(0.0).totals() == Totals({}, {})
    nothing = Totals({}, {})
    assert nothing.quantile("time_to_first_token_seconds", 0.5) is None
    assert nothing.usage(0.5) is nothing.ratio("x", "y") is None
