"""Histories, counters without resets, quantiles: each against a plain way to say the same."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.history.window import (
    TRACKED,
    CounterTotal,
    HistogramTotals,
    Quantile,
    Sample,
    above,
    add_to_total,
    covered,
    histogram_increase,
    increase,
    quantile,
    rate,
    seconds_where,
    weighted_quantile,
    weights,
)
from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.signals import BY_NAME, SIGNALS, Signal, SignalKind, Windowed
from kvwatch.core.model.snapshot import Histogram
from kvwatch.core.model.timed_rows import History

COUNTER = "generation_tokens_total"
seconds = st.floats(0, 100, allow_nan=False)
steps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5, 40.0]), seconds), min_size=1, max_size=120
)


@dataclass(frozen=True)
class Row:
    t: float
    value: float = 0.0


def sample(t: float, watched: float, value: float | None = 0.0, usage: float | None = 0.5) -> Sample:
    """A sample whose every counter totalled to `value`."""
    return Sample(t, watched, usage, 1.0, 0.0, 0.0, usage, "flowing", (value,) * len(TRACKED))


def totalled(values: Sequence[tuple[float, float | None]], gap: float = 10.0) -> list[Sample]:
    """Samples as the pipeline makes them of (time, counter as exposed)."""
    rows: list[Sample] = []
    total: CounterTotal | None = None
    watched = 0.0
    for t, raw in values:
        far = not rows or t - rows[-1].t > gap
        watched += 0.0 if far else t - rows[-1].t
        if raw is not None:
            total = total.add(raw, gap=far) if total else CounterTotal(raw)
        rows.append(sample(t, watched, None if raw is None or total is None else total.total))
    return rows


# -- history -------------------------------------------------------------------------------------------------


@given(steps, seconds, st.floats(0, 200))
def test_a_history_is_a_list_that_forgets(moves: list[tuple[float, float]], keep: float, back: float) -> None:
    """Whatever was appended, the rows since a moment are those of a plain list, as far back as was promised."""
    history: History[Row] = History()
    plain: list[Row] = []
    t = 0.0
    for dt, value in moves:
        t += dt
        before = history
        history = history.append(Row(t, value), keep)
        plain.append(Row(t, value))
        assert before.rows() == history.rows()[-len(before.rows()) - 1 : -1] or len(history) <= len(before)
        assert history.last == plain[-1]
    start = t - min(back, keep)
    first = max((i for i, row in enumerate(plain) if row.t <= start), default=0)
    assert history.since(start) == plain[first:]
    assert history.rows() == plain[-len(history) :]


@given(steps)
def test_appending_leaves_the_old_history_as_it_was(moves: list[tuple[float, float]]) -> None:
    """A history is a value: one that was kept shows the same rows after others were appended to it."""
    history: History[Row] = History()
    kept: list[tuple[History[Row], list[Row]]] = []
    t = 0.0
    for dt, value in moves:
        t += dt
        history = history.append(Row(t, value), 50.0)
        kept.append((history, history.rows()))
    assert all(old.rows() == rows for old, rows in kept)


def test_what_is_forgotten_is_bounded() -> None:
    """However long it goes on, a history holds what it keeps and a chunk or two more."""
    history: History[Row] = History()
    for i in range(5000):
        history = history.append(Row(float(i)), 60.0)
    assert 60 <= len(history) <= 60 + 3 * 32


# -- counters --------------------------------------------------------------------------------------------------

raws = st.one_of(st.none(), st.floats(0, 1e6))


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 3.0, 11.0, 60.0]), raws), min_size=1, max_size=60))
def test_increases_and_rates_are_never_negative(moves: list[tuple[float, float | None]]) -> None:
    """Resets, gaps, missing samples: an increase and a rate are absent or at least zero."""
    t, values = 0.0, []
    for dt, raw in moves:
        t += dt
        values.append((t, raw))
    rows = totalled(values)
    for start in range(len(rows)):
        part = rows[start:]
        up, speed = increase(part, COUNTER), rate(part, COUNTER)
        assert up is None or (up >= 0 and math.isfinite(up))
        assert speed is None or (speed >= 0 and math.isfinite(speed))
        if speed is not None:
            assert up is not None


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_without_resets_an_increase_is_last_minus_first(ups: list[int]) -> None:
    """A counter that only rises rose by what it shows."""
    values, total = [], 5
    for i, up in enumerate(ups):
        total += up
        values.append((float(i), float(total)))
    rows = totalled(values)
    assert increase(rows, COUNTER) == total - 5 - ups[0]
    assert rate(rows, COUNTER) == pytest.approx((total - 5 - ups[0]) / (len(ups) - 1))


def test_a_counter_that_falls_was_reset() -> None:
    """The new value is the increase since the reset."""
    rows = totalled([(0.0, 100.0), (1.0, 110.0), (2.0, 7.0), (3.0, 9.0)])
    assert increase(rows, COUNTER) == 10 + 7 + 2


def test_a_gap_belongs_to_nobody() -> None:
    """What a counter did while nobody looked is in no window, and neither is the time."""
    rows = totalled([(0.0, 100.0), (1.0, 101.0), (61.0, 5000.0), (62.0, 5003.0)])
    assert increase(rows, COUNTER) == 1 + 3
    assert covered(rows) == 2
    assert rate(rows, COUNTER) == 2


def test_a_reset_within_a_gap_gives_nothing() -> None:
    """Across a gap a lower value is no increase either."""
    rows = totalled([(0.0, 100.0), (60.0, 40.0), (61.0, 41.0)])
    assert increase(rows, COUNTER) == 1


def test_one_sample_tells_no_increase() -> None:
    """A lifetime counter is never read as an increase: a first sample gives none."""
    rows = totalled([(0.0, 12345.0)])
    assert increase(rows, COUNTER) is None
    assert rate(rows, COUNTER) is None
    assert increase([], COUNTER) is None


def test_a_counter_missing_now_has_no_increase() -> None:
    """A counter that the newest sample lacks is missing, whatever it did before."""
    rows = totalled([(0.0, 1.0), (1.0, 2.0), (2.0, None)])
    assert increase(rows, COUNTER) is None
    assert rate(rows, COUNTER) is None


def test_counters_that_windows_look_at_are_in_every_scrape() -> None:
    """What is tracked is asked for at every scrape: a counter missing between full pages would have no increase."""
    assert {BY_NAME[name.partition("/")[0]].pace for name in TRACKED} == {Pace.FAST}
    assert len(set(TRACKED)) == len(TRACKED)
    assert replace(BY_NAME["corrupted_requests_total"], windowed=(Windowed("requests"),)).pace is Pace.FAST


def test_a_counter_without_a_window_names_the_remedy() -> None:
    with pytest.raises(
        LookupError, match=r"'no_such_total' .*add windowed=.* kvwatch/core/model/signals\.py"
    ):
        increase([sample(0.0, 0.0, 1.0)], "no_such_total")


@pytest.mark.parametrize("signal", [one for one in SIGNALS if one.windowed], ids=lambda one: one.name)
def test_a_part_of_a_windowed_signal_exists(signal: Signal) -> None:
    """A part is a value of the signal's label, or a histogram's sum; only counters and histograms have windows."""
    parts = {one.part for one in signal.windowed}
    assert len(parts) == len(signal.windowed)
    if signal.kind is SignalKind.HISTOGRAM:
        assert parts <= {"", "sum"}
    else:
        assert signal.kind is SignalKind.COUNTER
        assert signal.dimension or parts == {""}


# -- time -------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 5.0, 30.0]), min_size=1, max_size=50), st.floats(0, 120))
def test_weights_add_up_to_the_time_watched(dts: list[float], back: float) -> None:
    """The seconds that samples stand for are the seconds watched within the window, none lost, none twice."""
    t, moments = 100.0, []
    for dt in dts:
        t += dt
        moments.append((t, 0.0))
    rows = totalled(moments)
    start = t - back
    watched = sum(
        after.t - max(row.t, start)
        for row, after in itertools.pairwise(rows)
        if after.t > start and after.covered > row.covered
    )
    held = weights(rows, start)
    assert sum(share for _, share in held) == pytest.approx(watched)
    assert all(share > 0 for _, share in held)
    assert seconds_where(held, lambda _row: True) == pytest.approx(watched)


pairs = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 10)), min_size=1, max_size=40)


@given(pairs, st.floats(0.01, 1))
def test_a_weighted_quantile_is_one_of_its_values_and_splits_the_time(
    held: list[tuple[float, float]], q: float
) -> None:
    """Values up to it held for at least the share asked for, values below it for less."""
    found = weighted_quantile(held, q)
    total = sum(weight for _, weight in held)
    assert found in {value for value, _ in held}
    assert sum(w for v, w in held if v <= found) >= q * total * (1 - 1e-9)
    assert sum(w for v, w in held if v < found) < q * total * (1 + 1e-9)


@given(pairs, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_weighted_quantile_rises_with_its_share(
    held: list[tuple[float, float]], one: float, other: float
) -> None:
    """A larger share never has a smaller quantile."""
    low, high = weighted_quantile(held, min(one, other)), weighted_quantile(held, max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high


def test_a_weighted_quantile_of_no_time_is_none() -> None:
    """Without any time there is no quantile."""
    assert weighted_quantile([], 0.9) is None
    assert weighted_quantile([(0.5, 0.0)], 0.9) is None


# -- histograms --------------------------------------------------------------------------------------------------

#: A histogram by what fell into each bucket, the last one beyond the last bound.
buckets = st.lists(
    st.tuples(st.floats(0.001, 100), st.integers(0, 50)), min_size=1, max_size=12, unique_by=lambda b: b[0]
)


def histogram(parts: list[tuple[float, int]], beyond: int) -> Histogram:
    parts = sorted(parts)
    counts, total = [], 0
    for _, n in parts:
        total += n
        counts.append(float(total))
    return Histogram(0.0, float(total + beyond), tuple(bound for bound, _ in parts), tuple(counts))


def by_prometheus(q: float, found: Histogram) -> float:
    """`histogram_quantile` as Prometheus defines it, for 0 < q <= 1 and at least one observation."""
    uppers, counts = [*found.bounds, math.inf], [*found.counts, found.count]
    rank = q * counts[-1]
    b = next((i for i in range(len(counts) - 1) if counts[i] >= rank), len(counts) - 1)
    if b == len(counts) - 1:
        return uppers[-2]
    if b == 0 and uppers[0] <= 0:
        return uppers[0]
    start, below = (uppers[b - 1], counts[b - 1]) if b else (0.0, 0.0)
    return start + (uppers[b] - start) * ((rank - below) / (counts[b] - below))


@given(buckets, st.integers(0, 50), st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_quantiles_are_those_of_prometheus(parts: list[tuple[float, int]], beyond: int, q: float) -> None:
    """The quantile is histogram_quantile's, and in the open tail it says that it is a lower bound."""
    found = histogram(parts, beyond)
    result = quantile(found, q)
    if found.count == 0:
        assert result is None
        return
    assert result is not None
    assert result.value == pytest.approx(by_prometheus(q, found))
    assert result.at_least == (q * found.count > found.counts[-1])
    if result.at_least:
        assert result.value == found.bounds[-1]


def test_quantiles_of_nothing() -> None:
    """Without observations, or without buckets, there is no quantile."""
    assert quantile(Histogram(0.0, 0.0, (1.0,), (0.0,)), 0.5) is None
    assert quantile(Histogram(5.0, 5.0), 0.5) is None


def test_a_quantile_between_two_bounds_is_linear() -> None:
    """Half of ten between 1 and 2 is a line's half."""
    found = Histogram(0.0, 10.0, (1.0, 2.0, 4.0), (0.0, 10.0, 10.0))
    assert quantile(found, 0.5) == Quantile(1.5)
    assert quantile(Histogram(0.0, 10.0, (1.0, 2.0), (0.0, 4.0)), 0.5) == Quantile(2.0, at_least=True)


@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=2, max_size=20), st.data())
def test_a_histograms_increase_is_what_was_added(adds: list[list[int]], data: st.DataObject) -> None:
    """With resets in between, the increase of each bucket is all that was observed since the first page."""
    resets = data.draw(st.sets(st.integers(1, len(adds) - 1), max_size=3))
    raw, expected = [0, 0, 0], [0, 0, 0]
    before: Histogram | None = None
    total: Histogram | None = None
    rows = []
    for i, add in enumerate(adds):
        if i in resets and before is not None:
            below = sum(add) < before.count
            raw = [0, 0, 0] if below else raw
        raw = [r + a for r, a in zip(raw, add, strict=True)]
        if i:
            expected = [e + a for e, a in zip(expected, add, strict=True)]
        now = histogram([(1.0, raw[0]), (2.0, raw[1])], raw[2])
        total = add_to_total(before, total, now)
        before = now
        rows.append(HistogramTotals(float(i), {"x": total}))
    found = histogram_increase(rows, "x")
    assert found is not None
    assert list(found.counts) == [expected[0], expected[0] + expected[1]]
    assert found.count == sum(expected)


def test_other_bounds_start_a_new_climb() -> None:
    """A server that came back with other buckets shares no increase with what was before."""
    old = Histogram(5.0, 5.0, (1.0,), (5.0,))
    new = Histogram(9.0, 9.0, (1.0, 2.0), (9.0, 9.0))
    total = add_to_total(old, old, new)
    assert total == Histogram(0.0, 0.0, (1.0, 2.0), (0.0, 0.0))
    rows = [HistogramTotals(0.0, {"x": old}), HistogramTotals(1.0, {"x": total})]
    assert histogram_increase(rows, "x") is None
    assert histogram_increase(rows, "y") is None
    later = add_to_total(new, total, Histogram(10.0, 12.0, (1.0, 2.0), (10.0, 12.0)))
    assert histogram_increase([*rows, HistogramTotals(2.0, {"x": later})], "x") == Histogram(
        1.0, 3.0, (1.0, 2.0), (1.0, 3.0)
    )


def test_how_many_were_above_is_linear_inside_a_bucket() -> None:
    """Of ten between 1 and 2 half are above 1.5; those beyond the last bound are above whatever is below it."""
    seen = Histogram(0.0, 15.0, (1.0, 2.0), (2.0, 12.0))
    assert [above(seen, value) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 9.0)] == [15, 14, 13, 8, 3, 3]
    assert above(Histogram(0.0, 0.0, (1.0,), (0.0,)), 0.5) == 0
