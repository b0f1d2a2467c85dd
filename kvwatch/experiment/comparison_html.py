"""A comparison as one HTML file that needs nothing else: no script, no font, no picture from elsewhere.

Whatever a recording says (names of models, labels) is escaped, and a Content-Security-Policy in the page forbids the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from kvwatch import __version__
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.percentiles import LATENCIES
from kvwatch.experiment import svg
from kvwatch.experiment.caution import Caution, Side
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.comparison_rows import (
    ComparisonRow,
    changed,
    method,
    rows,
    runs_line,
    summary,
    untold,
    verdict_word,
    within_words,
)
from kvwatch.experiment.configuration import FOLLOWS
from kvwatch.experiment.measures import MEASURES, Scale
from kvwatch.experiment.report_style import STYLE
from kvwatch.experiment.series import (
    ENGINE_SECONDS,
    RUNNING,
    USAGE_LEVELS,
    WAITING,
    in_regime,
    level,
    per_second,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_DISTRIBUTIONS = (
    ("time_to_first_token_seconds", "Time to first token"),
    ("inter_token_latency_seconds", "Inter-token latency"),
    ("e2e_request_latency_seconds", "End-to-end latency"),
)
_POINTS = 300
"""Points of a line at most."""


def as_html(comparison: Comparison) -> str:
    """The page."""
    names = " and ".join(
        [comparison.baseline.run.name, *(one.side.run.name for one in comparison.candidates)]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)} – kvwatch compare</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(_body(comparison))
        + f"</main><footer>kvwatch {__version__}</footer></body></html>\n"
    )


def _body(comparison: Comparison) -> Iterator[str]:
    baseline = comparison.baseline.run.name
    yield f"<h1>Compared with {escape(baseline)}</h1>"
    for candidate in comparison.candidates:
        word = verdict_word(candidate)
        kind, within = word.replace(" ", "-"), escape(within_words(candidate))
        told = f"{escape(candidate.side.run.name)}: <b>{escape(word)}</b>{within}"
        yield f'<section class="verdict {kind}"><h2>{told}</h2>'
        yield _list([f"changed: {line}" for line in changed(candidate)] + summary(candidate))
        yield _cautions(candidate.cautions) + "</section>"
    yield _cautions(comparison.cautions)
    yield _list(map(runs_line, comparison.sides))
    yield "<h2>Differences</h2>"
    for candidate in comparison.candidates:
        yield from _intervals(candidate, comparison)
    yield f'<div class="wide">{_table(comparison)}</div>'
    reasons = untold(comparison)
    if reasons:
        yield "<h3>Not told</h3>" + _list(reasons)
    yield "<h2>Over time</h2>" + _legend(comparison.sides)
    yield from _over_time(comparison.sides)
    yield "<h2>Latencies: share of observations up to so many seconds</h2>" + _legend(comparison.sides)
    yield from _latencies(comparison.sides)
    yield "<h2>Time per regime</h2>"
    yield from _regimes(comparison.sides)
    yield "<h2>Configuration</h2>" + _configuration(comparison.sides)
    yield "<h2>Method</h2>" + "".join(f"<p>{escape(line)}</p>" for line in method(comparison))


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _cautions(cautions: Sequence[Caution]) -> str:
    return "".join(
        f'<p class="caution {one.weight}"><b>{"Warning" if one.weight == "warning" else "Note"}:</b>'
        f" {escape(one.text)}</p>"
        for one in cautions
    )


def _intervals(candidate: Candidate, comparison: Comparison) -> Iterator[str]:
    """The plot of the differences that are shares of the baseline."""
    bars = []
    for measure in MEASURES:
        found = candidate.differences[measure.id]
        if measure.scale is not Scale.RATIO or found.low is None or found.high is None or found.value is None:
            continue
        kind = str(found.verdict).replace(" ", "-")
        star = "*" if measure.headline else ""
        bars.append(svg.Bar(measure.title + star, 1 + found.low, 1 + found.value, 1 + found.high, kind))
    if bars:
        title = f"{candidate.side.run.name} / {comparison.baseline.run.name}, with 95 % intervals"
        yield _figure(title, svg.intervals(bars, title, comparison.margin))


def _figure(caption: str, plot: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{plot}</figure>"


def _table(comparison: Comparison) -> str:
    """The table; of several candidates without the intervals, which the plots have."""
    names = [side.run.name for side in comparison.sides]
    brief = len(comparison.candidates) > 1
    told = ("difference", "verdict") if brief else ("difference", "95 % interval", "verdict")
    more = "".join(f"<th{' class=word' if name == 'verdict' else ''}>{name}</th>" for name in told)
    head = f"<th></th><th>{escape(names[0])}</th>" + "".join(
        f"<th>{escape(name)}</th>{more}" for name in names[1:]
    )
    columns = 2 + (1 + len(told)) * len(comparison.candidates)
    lines, group = [], ""
    for row in rows(comparison):
        if row.group != group:
            group = row.group
            lines.append(f'<tr class="group"><th colspan="{columns}">{escape(group)}</th></tr>')
        lines.append(_row(row, brief=brief))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _row(row: ComparisonRow, *, brief: bool) -> str:
    cells = "".join(
        f"<td>{escape(cell.value)}</td><td>{escape(cell.difference)}</td>"
        + ("" if brief else f'<td class="dim">{escape(cell.interval)}</td>')
        + f'<td class="word {cell.verdict.replace(" ", "-")}">{escape(cell.verdict)}</td>'
        for cell in row.cells
    )
    title = escape(row.title) + ("*" if row.headline else "")
    kind = " class=headline" if row.headline else ""
    return f"<tr{kind}><th>{title}</th><td>{escape(row.baseline)}</td>{cells}</tr>"


def _legend(sides: Sequence[Side]) -> str:
    keys = "".join(
        '<span><svg viewBox="0 0 30 8" aria-hidden="true">'
        f'<line class="run run{i}" x1="0" y1="4" x2="30" y2="4"/></svg>'
        f" {escape(side.run.name)}</span>"
        for i, side in enumerate(sides)
    )
    return f'<p class="legend">{keys}</p>'


def _over_time(sides: Sequence[Side]) -> Iterator[str]:
    plots = (
        ("KV cache usage", "%", [_usage(side) for side in sides], 100.0),
        ("Requests waiting", "", [per_second(side.run.series, WAITING) for side in sides], None),
        ("Requests running", "", [per_second(side.run.series, RUNNING) for side in sides], None),
        (
            "Generated tokens/s",
            "",
            [per_second(side.run.series, "generation_tokens_total") for side in sides],
            None,
        ),
    )
    for title, unit, values, top in plots:
        drawn = [
            svg.SvgLine(i, _thinned(side.run.series.ends, held))
            for i, (side, held) in enumerate(zip(sides, values, strict=True))
            if any(held) or title != "KV cache usage"
        ]
        yield _figure(title, svg.lines(drawn, title, unit, top=top))


def _usage(side: Side) -> list[float]:
    """Mean usage of each step, per cent."""
    columns, steps = side.run.series.columns, len(side.run.series.ends)
    sums = [0.0] * steps
    for i in range(1, USAGE_LEVELS + 1):
        for step, seconds in enumerate(columns.get(level(i), ())):
            sums[step] += 100 * i / USAGE_LEVELS * seconds
    watched = columns.get(ENGINE_SECONDS, ())
    return [total / seconds for total, seconds in zip(sums, watched, strict=True)]


def _thinned(ends: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Points of a line, means of several where there are too many."""
    every = -(-len(ends) // _POINTS) or 1
    return [
        (ends[min(i + every, len(ends)) - 1], sum(values[i : i + every]) / len(values[i : i + every]))
        for i in range(0, len(ends), every)
    ]


def _latencies(sides: Sequence[Side]) -> Iterator[str]:
    for signal, title in _DISTRIBUTIONS:
        assert signal in LATENCIES  # noqa: S101 - a spelling
        drawn = []
        for i, side in enumerate(sides):
            seen = side.estimates.totals.histogram(signal)
            if seen.count > 0 and signal not in side.run.missing:
                shares = [(x, y / seen.count) for x, y in zip(seen.bounds, seen.counts, strict=True)]
                drawn.append(svg.SvgLine(i, shares))
        if drawn:
            yield _figure(title, svg.distributions(drawn, title))


def _regimes(sides: Sequence[Side]) -> Iterator[str]:
    held = []
    for side in sides:
        totals = side.estimates.totals
        shares = [(str(one), totals.ratio(in_regime(one), ENGINE_SECONDS) or 0.0) for one in Regime]
        held.append((side.run.name, [part for part in shares if part[1] > 0]))
    there = {name for _, parts in held for name, _ in parts}
    keys = "".join(
        f'<span><i class="part {one}"></i> {escape(one.replace("_", " "))}</span>'
        for one in Regime
        if one in there
    )
    yield f'<p class="legend">{keys}</p><figure>{svg.shares(held, "Time per regime")}</figure>'


def _configuration(sides: Sequence[Side]) -> str:
    """Every option that is shown, with those that differ marked."""
    names = dict.fromkeys(name for side in sides for name in side.run.configuration)
    head = "".join(f"<th>{escape(side.run.name)}</th>" for side in sides)
    lines = []
    for name in names:
        said = [side.run.configuration.get(name, "–") for side in sides]
        differs = ' class="differs"' if len(set(said)) > 1 else ""
        cells = "".join(f"<td>{escape(one)}</td>" for one in said)
        lines.append((not differs, f"<tr{differs}><th>{escape(FOLLOWS.get(name, name))}</th>{cells}</tr>"))
    body = "".join(line for _, line in sorted(lines, key=lambda line: line[0]))
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
