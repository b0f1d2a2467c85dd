"""The words of a comparison: rows, sentences and formatted numbers, the same for text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvwatch.experiment.bootstrap import DRAWS, SEED
from kvwatch.experiment.cautions import Caution, Weight, arrivals
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.differences import DIFFERENT, Difference, DifferenceVerdict
from kvwatch.experiment.estimate import Estimate, Side
from kvwatch.experiment.measures import HEADLINES, MEASURES, Measure, MeasureGroup, Scale
from kvwatch.text.numbers import NOTHING, format_duration, format_number

_PEAKS = (
    ("requests_running", "running, peak", MeasureGroup.LOAD, ""),
    ("requests_waiting", "waiting, peak", MeasureGroup.LOAD, ""),
    ("kv_cache_usage_ratio", "KV usage, peak", MeasureGroup.CACHE, "%"),
)
"""Peaks, which have no error: name, title, group and unit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The number of a candidate, and how it differs from the baseline; empty where there is nothing."""

    value: str
    difference: str = ""
    interval: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A row of the table. `headline` rows decide the overall verdict."""

    group: MeasureGroup
    title: str
    headline: bool
    baseline: str
    cells: tuple[Cell, ...]

    @property
    def starred(self) -> str:
        return self.title + ("*" if self.headline else "")


def rows(comparison: Comparison) -> list[ComparisonRow]:
    """The table, by group, without rows that are empty for every run."""
    return [row for group in MeasureGroup for row in _group(comparison, group) if not _is_empty(row)]


def _group(comparison: Comparison, group: MeasureGroup) -> Iterator[ComparisonRow]:
    for measure in (one for one in MEASURES if one.group is group):
        first, *others = (_value(measure, side.by_id[measure.id]) for side in comparison.sides)
        found = [one.differences[measure.id] for one in comparison.candidates]
        cells = (
            Cell(shown, difference(measure, one.value), interval(measure, one), one.verdict)
            for shown, one in zip(others, found, strict=True)
        )
        yield ComparisonRow(group, measure.title, measure.headline, first, tuple(cells))
    for name, title, of, unit in _PEAKS:
        if of is group:
            first, *others = (_with_unit(side.run.peaks.get(name), unit) for side in comparison.sides)
            yield ComparisonRow(group, title, False, first, tuple(map(Cell, others)))


def _is_empty(row: ComparisonRow) -> bool:
    empty = {NOTHING, "0 %"} if row.group is MeasureGroup.REGIMES else {NOTHING}
    return not row.headline and {row.baseline, *(cell.value for cell in row.cells)} <= empty


# -- numbers ------------------------------------------------------------------------------------------------------


def _value(measure: Measure, found: Estimate) -> str:
    return ("≥ " if found.at_least else "") + _with_unit(found.value, measure.unit)


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    if unit == "%":
        return f"{100 * value:.0f} %" if value == 0 or value >= 0.1 else f"{100 * value:.1f} %"
    if unit == "s" and value < 0.9995:
        return f"{format_number(1000 * value)} ms"
    return f"{format_number(value)}{'' if unit.startswith('/') else ' '}{unit}".rstrip()


def difference(measure: Measure, value: float | None) -> str:
    """A difference with its sign: per cent of the baseline, points for shares, or a number."""
    return "" if value is None else " ".join(filter(None, _amount(measure, value)))


def interval(measure: Measure, found: Difference) -> str:
    """The interval of a difference; empty if it has no width."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    (low, first), (high, second) = _amount(measure, found.low), _amount(measure, found.high)
    if low == high:
        return f"{low} {first}".rstrip()
    return f"{low}{f' {first}' if first and first != second else ''} to {high} {second}".rstrip()


def _amount(measure: Measure, value: float) -> tuple[str, str]:
    """An amount with its sign, and its unit. A ratio of at least 3 is written as a factor."""
    if measure.scale is Scale.DIFFERENCE:
        points = measure.unit == "%"
        return _signed(max(-100.0, min(100.0, 100 * value)) if points else value), "points" if points else ""
    if value < 2:
        return _signed(100 * value), "%"
    if value >= 999:
        return "×1,000 or more", ""
    return f"×{format_number(round(1 + value) if value >= 9 else round(1 + value, 1))}", ""


def _signed(amount: float) -> str:
    size = abs(amount)
    shown = format_number(round(size) if size >= 10 else round(size, 1 if size >= 1 else 2))
    return shown if shown == "0" else f"{'+' if amount > 0 else '−'}{shown}"


# -- sentences ----------------------------------------------------------------------------------------------------


def verdict_word(candidate: Candidate) -> str:
    if candidate.load_ratio is not None:
        return "not comparable"
    return candidate.verdict or "better and worse"


def within_words(candidate: Candidate) -> str:
    """The margin with which the runs are the same, to follow the verdict; empty if unknown."""
    if candidate.load_ratio is not None:
        return f" (load differs {max(candidate.load_ratio, 1 / candidate.load_ratio):.1f} ×)"
    return "" if candidate.same_within is None else f", the same within {100 * candidate.same_within:.0f} %"


def reasons(candidate: Candidate) -> list[str]:
    """What changed, and which measures gave the verdict."""
    lines = [
        f"changed: {one.title}: {one.baseline} → {one.candidate}" + (" (derived)" if one.follows else "")
        for one in candidate.changed
    ] or ["changed: no visible option"]
    found = candidate.differences
    groups: list[tuple[str, list[Measure]]] = [
        (verdict, [one for one in HEADLINES if found[one.id].verdict is verdict])
        for verdict in DifferenceVerdict
    ]
    regimes = [
        one for one in MEASURES if one.group is MeasureGroup.REGIMES and found[one.id].verdict in DIFFERENT
    ]
    for title, measures in (*groups, (MeasureGroup.REGIMES, regimes)):
        if measures:
            lines.append(f"{title}: {'; '.join(_reason(one, found[one.id]) for one in measures)}")
    return lines


def _reason(measure: Measure, found: Difference) -> str:
    if found.verdict not in DIFFERENT and found.verdict is not DifferenceVerdict.SAME:
        return measure.title
    between = interval(measure, found)
    return f"{measure.title} {difference(measure, found.value)}" + (f" ({between})" if between else "")


def not_judged(comparison: Comparison) -> list[str]:
    """Why measures have no number or no verdict, each reason once with its measures."""
    by_reason: dict[str, dict[str, None]] = {}
    for candidate in comparison.candidates:
        for measure in MEASURES:
            reason = candidate.differences[measure.id].reason
            if reason:
                by_reason.setdefault(reason, {})[measure.title] = None
    return [f"{', '.join(titles)}: {reason}" for reason, titles in by_reason.items()]


def caution_line(caution: Caution) -> str:
    return f"{'WARNING' if caution.weight is Weight.WARNING else 'note'}: {caution.text}"


def run_line(side: Side) -> str:
    """The size of a run."""
    run, came = side.run, arrivals(side)
    minutes, seconds = divmod(round(run.duration_s), 60)
    warmup = f" after a warm-up of {format_duration(run.warmup_s)}" if run.warmup_s >= 1 else ""
    rate = f", {format_number(came[1])} requests/s" if came else ""
    return f"{run.name}: {minutes}:{seconds:02} min{warmup}, {run.scrapes} scrapes, {run.failed_scrapes} failed{rate}"


def method(comparison: Comparison) -> list[str]:
    """How the numbers were computed."""
    blocks = ", ".join(
        f"{format_number(side.block_s)} s" if side.block_s else NOTHING for side in comparison.sides
    )
    text = f"""
Intervals are 95 % intervals: circular block bootstrap over time (blocks of {blocks}; {DRAWS:,} draws; seed {SEED})
 and Student's t. Quantiles are interpolated in vLLM's buckets.

same: the whole interval lies within the margin, {100 * comparison.margin:.3g} % of the baseline (5 points for shares,
 0.5 waiting requests, 0.05 preemptions per request). no difference shown: inconclusive; the interval reaches
 beyond the margin, and the difference may be chance. “the same within N %”: with that margin all measures marked *
 would be the same.

The verdict rests on the {len(HEADLINES)} measures marked *, which share an error rate of 5 % (Holm). Of the other
 {len(MEASURES) - len(HEADLINES)}, about 1 in 20 differs by chance.

An interval covers chance within a run, not variation between runs. Record the baseline a second time and compare it
 too: that shows how much two runs of one configuration differ."""
    return [line.replace("\n", "") for line in text.strip().split("\n\n")]
