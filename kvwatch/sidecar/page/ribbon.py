"""Pictures that need no script: the regimes as a ribbon, and bars. Each says in words what it shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kvwatch.core.history.regimes import MEANING, Regime
from kvwatch.sidecar.page.chart_data import RESTARTED, ChartRun
from kvwatch.sidecar.page.markup import e
from kvwatch.text.numbers import format_duration

_WIDE = 100.0
"""The width of a bar in its own units, and of a ribbon."""


def ribbon(runs: Sequence[ChartRun], span_s: float, restarts: Sequence[float] = ()) -> Iterator[str]:
    """The regimes of the last `span_s`, oldest at the left, and a list of how long each lasted; `restarts` of vLLM,
    in seconds before now, are marked."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        seconds[run.regime] += run.seconds
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {format_duration(held)}" for name, held in longest) or "nothing was seen"
    again = [f"{RESTARTED} {format_duration(ago)} ago" for ago in restarts]
    told = "; ".join([told, *again])
    yield (
        f'<svg class="ribbon" role="img" aria-label="Regimes of the last {format_duration(span_s)}: {e(told)}"'
        f' viewBox="0 0 {_WIDE:g} 10" preserveAspectRatio="none">'
    )
    for run in runs:
        left, wide = _WIDE * (1 - run.start / span_s), _WIDE * run.seconds / span_s
        when = f"{run.regime} for {format_duration(run.seconds)}, until {format_duration(run.end)} ago"
        yield (
            f'<rect class="{e(run.regime)}" x="{max(left, 0):.2f}" width="{wide:.2f}" height="10">'
            f"<title>{e(when)}</title></rect>"
        )
    for ago, words in zip(restarts, again, strict=True):
        at = f"{_WIDE * (1 - ago / span_s):.2f}"
        yield f'<line class="restart" x1="{at}" x2="{at}" y2="10"><title>{words}</title></line>'
    yield f'</svg><p class="axis" aria-hidden="true"><span>{format_duration(span_s)} ago</span><span>now</span></p>'
    yield '<ul class="legend">'
    for name, held in longest:
        yield (
            f'<li title="{e(MEANING[Regime(name)])}"><span class="swatch {e(name)}"></span>'
            f'{e(name)} <span class="dim">{e(format_duration(held))}</span></li>'
        )
    yield from (f'<li><span class="restart" aria-hidden="true"></span>{words}</li>' for words in again)
    yield "</ul>"


def bar(share: float | None, name: str) -> str:
    """A share, 0 to 1, as a bar without words: what stands beside it says the number, or that there is none."""
    if share is None:
        return ""
    wide = _WIDE * min(max(share, 0.0), 1.0)
    return (
        f'<svg class="bar" aria-hidden="true" viewBox="0 0 {_WIDE:g} 8" preserveAspectRatio="none">'
        f'<rect class="whole" width="{_WIDE:g}" height="8"/>'
        f'<rect class="{name}" width="{wide:.1f}" height="8"/></svg>'
    )
