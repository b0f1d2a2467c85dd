"""A comparison in words: its verdicts, rows and sentences, the same for text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvwatch.experiment.bootstrap import DRAWS, SEED
from kvwatch.experiment.caution import Side
from kvwatch.experiment.comparability import requests_per_second
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.differences import SHOWN, Difference, DifferenceVerdict
from kvwatch.experiment.estimate import Estimate
from kvwatch.experiment.measures import HEADLINES, MEASURES, Measure, MeasureGroup, Scale
from kvwatch.text.numbers import NOTHING, format_duration, format_number

#: Peaks, which have no error: what they are called, in which group, and their unit.
PEAKS = (
    ("requests_running", "running, peak", MeasureGroup.LOAD, ""),
    ("requests_waiting", "waiting, peak", MeasureGroup.LOAD, ""),
    ("kv_cache_usage_ratio", "KV usage, peak", MeasureGroup.CACHE, "%"),
)
MIXED = "better and worse"


@dataclass(frozen=True, slots=True)
class Cell:
    """A candidate's number beside the baseline's. What is not there is empty."""

    value: str
    difference: str = ""
    interval: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A row of the table. `headline` rows decide the verdict on the whole."""

    group: MeasureGroup
    title: str
    headline: bool
    baseline: str
    cells: tuple[Cell, ...]


def verdict_word(candidate: Candidate) -> str:
    return MIXED if candidate.verdict is None else str(candidate.verdict)


def within_words(candidate: Candidate) -> str:
    """How large a difference could be that is not shown, to follow the verdict; empty where that is not known."""
    return "" if candidate.same_within is None else f", the same within {candidate.same_within:.0%}"


def rows(comparison: Comparison) -> list[ComparisonRow]:
    """The table, by group; without rows of which no run has anything to say."""
    found = [
        row for group in MeasureGroup for row in (*_measured(comparison, group), *_peaked(comparison, group))
    ]
    return [row for row in found if _says_something(row)]


def _says_something(row: ComparisonRow) -> bool:
    values = {row.baseline, *(cell.value for cell in row.cells)}
    return row.headline or not values <= (
        {NOTHING} if row.group is not MeasureGroup.REGIMES else {NOTHING, "0 %"}
    )


def _measured(comparison: Comparison, group: MeasureGroup) -> Iterator[ComparisonRow]:
    for measure in MEASURES:
        if measure.group is not group:
            continue
        first, *others = [value(measure, side.estimates.by_id[measure.id]) for side in comparison.sides]
        found = [one.differences[measure.id] for one in comparison.candidates]
        cells = [
            Cell(shown, difference(measure, one.value), interval(measure, one), str(one.verdict))
            for shown, one in zip(others, found, strict=True)
        ]
        yield ComparisonRow(group, measure.title, measure.headline, first, tuple(cells))


def _peaked(comparison: Comparison, group: MeasureGroup) -> Iterator[ComparisonRow]:
    for name, title, of, unit in PEAKS:
        if of is group:
            first, *others = [_with_unit(side.run.peaks.get(name), unit) for side in comparison.sides]
            yield ComparisonRow(group, title, False, first, tuple(map(Cell, others)))


def value(measure: Measure, found: Estimate) -> str:
    shown = _with_unit(found.value, measure.unit)
    return f"≥ {shown}" if found.at_least else shown


def difference(measure: Measure, found: float | None) -> str:
    """A difference with its sign: per cent of the baseline, points for shares, or a number."""
    return "" if found is None else " ".join(filter(None, _amount(measure, found)))


def interval(measure: Measure, found: Difference) -> str:
    """From where to where a difference lies; empty where there is no width to it."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    (low, first), (high, second) = _amount(measure, found.low), _amount(measure, found.high)
    if low == high:
        return f"{low} {first}".rstrip()
    return f"{low}{f' {first}' if first and first != second else ''} to {high} {second}".rstrip()


def _amount(measure: Measure, found: float) -> tuple[str, str]:
    """An amount with its sign, and its unit; from three times on it is how many times as much."""
    if measure.scale is Scale.DIFFERENCE:
        points = measure.unit == "%"
        return _signed(max(-100.0, min(100.0, 100 * found)) if points else found), "points" if points else ""
    if found < 2:
        return _signed(100 * found), "%"
    return (
        f"×{format_number(round(1 + found) if found >= 9 else 1 + found)}"
        if found < 999
        else "×1,000 or more",
        "",
    )


def _signed(amount: float) -> str:
    shown = format_number(round(amount) if abs(amount) >= 10 else round(abs(amount), 2)).removeprefix("-")
    return shown if shown == "0" else f"{'+' if amount > 0 else '−'}{shown}"


def _with_unit(found: float | None, unit: str) -> str:
    if found is None:
        return NOTHING
    if unit == "%":
        return f"{100 * found:.0f} %" if found == 0 or found >= 0.1 else f"{100 * found:.1f} %"
    if unit == "s" and found < 0.9995:
        return f"{format_number(1000 * found)} ms"
    return f"{format_number(found)}{'' if unit.startswith('/') else ' '}{unit}".rstrip()


def summary(candidate: Candidate) -> list[str]:
    """The verdict's reasons: which headline measures say what, and what kept the engine busy or waiting instead."""
    lines = []
    for verdict in DifferenceVerdict:
        parts = [
            _headline(measure, candidate.differences[measure.id])
            for measure in HEADLINES
            if candidate.differences[measure.id].verdict is verdict
        ]
        if parts:
            lines.append(f"{verdict}: {'; '.join(parts)}")
    regimes = [
        _headline(measure, candidate.differences[measure.id])
        for measure in MEASURES
        if measure.group is MeasureGroup.REGIMES and candidate.differences[measure.id].verdict in SHOWN
    ]
    return lines + ([f"{MeasureGroup.REGIMES}: {'; '.join(regimes)}"] if regimes else [])


def _headline(measure: Measure, found: Difference) -> str:
    if found.verdict in SHOWN or found.verdict is DifferenceVerdict.SAME:
        between = interval(measure, found)
        return f"{measure.title} {difference(measure, found.value)}" + (f" ({between})" if between else "")
    return measure.title


def untold(comparison: Comparison) -> list[str]:
    """Why numbers or differences are not there, each reason once with what it holds for."""
    by_reason: dict[str, dict[str, None]] = {}
    for candidate in comparison.candidates:
        for measure in MEASURES:
            reason = candidate.differences[measure.id].reason
            if reason:
                by_reason.setdefault(reason, {})[measure.title] = None
    return [f"{', '.join(titles)}: {reason}" for reason, titles in by_reason.items()]


def changed(candidate: Candidate) -> list[str]:
    """What the configuration has different, one a line."""
    return [
        f"{one.title}: {one.baseline} → {one.candidate}" + (" (follows)" if one.follows else "")
        for one in candidate.changed
    ] or ["nothing that is seen"]


def runs_line(side: Side) -> str:
    """How much of a run there is."""
    run, rate = side.run, requests_per_second(side)
    came = "" if rate is None else f", {format_number(rate)} requests/s"
    warmup = f" after a warm-up of {format_duration(run.warmup_s)}" if run.warmup_s >= 1 else ""
    return (
        f"{run.name}: {clock(run.duration_s)} min{warmup}, {run.scrapes} scrapes, {run.failed} failed{came}"
    )


def clock(seconds: float) -> str:
    """Minutes and seconds, as ``2:30``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def method(comparison: Comparison) -> list[str]:
    """How the numbers came about, in sentences."""
    blocks = ", ".join(
        f"{format_number(side.estimates.block_s)} s" if side.estimates.block_s else NOTHING
        for side in comparison.sides
    )
    details = len(MEASURES) - len(HEADLINES)
    return [
        (
            f"Intervals hold the difference in 95 of 100 cases: circular block bootstrap over time, blocks of"
            f" {blocks}, {DRAWS} draws, seed {SEED}; Student's t. Quantiles are those of vLLM's buckets."
        ),
        (
            f"{DifferenceVerdict.SAME}: the whole interval lies within the margin,"
            f" {comparison.margin:.0%} of the baseline (5 points for shares, 0.5 requests waiting,"
            " 0.05 preemptions per request)."
            f" {DifferenceVerdict.NOT_SHOWN}: it does not, and the difference may be chance; with the margin after"
            " “the same within” all that the verdict rests on would be the same."
        ),
        (
            f"The verdict rests on the {len(HEADLINES)} measures marked *, which share the 5 % between them (Holm)."
            f" Of the other {details} about one in twenty differs by chance."
        ),
        (
            "Chance within a run is all that an interval knows. How much runs of one configuration differ anyway only"
            " a second recording of the baseline shows: compare it as well."
        ),
    ]
