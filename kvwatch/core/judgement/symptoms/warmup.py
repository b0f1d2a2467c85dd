"""Late first tokens of a server that has just started, and is not warm yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.judgement.symptoms.evidence_tools import (
    WAITING,
    clear,
    computed_once,
    judge_if,
    missing_signals,
    regime_seconds,
    unknown,
)
from kvwatch.core.judgement.symptoms.row import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.snapshot import Histogram

_TTFT = "time_to_first_token_seconds"


class _Served(NamedTuple):
    """First tokens since the server started, at a time: those that came late, all, and the seconds to all of them."""

    t: float
    late: float
    all: float
    seconds: float


def _late(view: EngineView, t: float, seen: Histogram) -> _Served:
    """What of a histogram was late: beyond the first bound from which on it is."""
    late = view.limits["cold_start.late"]
    beyond = next((n for bound, n in zip(seen.bounds, seen.counts, strict=True) if bound >= late), seen.count)
    return _Served(t, seen.count - beyond, seen.count, seen.sum)


@computed_once
def _since_start(view: EngineView) -> list[_Served]:
    """What was served since the server started, at each full page of the last five minutes, the newest last."""
    newest = view.lifetime.get(_TTFT)
    rows = view.windows.histograms.since(view.now - FIVE_MINUTES)
    climbs = [(row.t, row.by_signal[_TTFT]) for row in rows if _TTFT in row.by_signal]
    if newest is None or not newest.bounds or not climbs or climbs[-1][1].bounds != newest.bounds:
        return []
    now, risen = _late(view, view.now, newest), _late(view, *climbs[-1])
    before = (now.late - risen.late, now.all - risen.all, now.seconds - risen.seconds)
    counts = (_late(view, t, climb) for t, climb in climbs)
    return [
        _Served(one.t, before[0] + one.late, before[1] + one.all, before[2] + one.seconds) for one in counts
    ]


def _late_from_the_first(seen: Sequence[_Served]) -> _Served | None:
    """When first tokens were first seen to be late, if those were the first that the server served."""
    i = next((i for i, one in enumerate(seen) if one.late > 0), None)
    if i is None:
        return None
    began_here = i > 0 and seen[i - 1].all == 0
    return seen[i] if began_here or 2 * seen[i].late >= seen[i].all else None


def _young(view: EngineView, served: float) -> bool:
    """Whether the server started lately, or had hardly served yet."""
    if view.age_s is not None and view.age_s <= view.limits["cold_start.within"]:
        return True
    return served <= view.limits["cold_start.first"]


def may_be_cold(view: EngineView) -> bool:
    """Whether it is a cold start, or too early to say that it is none."""
    first = _late_from_the_first(_since_start(view))
    early = first is not None and _young(view, first.all) and view.now - first.t <= MINUTE
    return early or "cold_start" in view.firing


def _cold_start(view: EngineView) -> Judgement:
    if reason := missing_signals(view, _TTFT):
        return unknown(reason)
    limits = view.limits
    seen = _since_start(view)
    now = seen[-1] if seen else _Served(view.now, 0.0, 0.0, 0.0)
    waited = regime_seconds(view, FIVE_MINUTES, *WAITING)
    evidence = {
        "late_first_tokens": now.late,
        "served_requests": now.all,
        "server_age_seconds": view.age_s,
        "waiting_seconds": waited,
        "threshold_late_seconds": limits["cold_start.late"],
        "threshold_age_seconds": limits["cold_start.within"],
        "threshold_served_requests": limits["cold_start.first"],
        "threshold_waiting_seconds": limits["cold_start.waited"],
    }
    first = _late_from_the_first(seen)
    if first is None or waited > limits["cold_start.waited"]:
        return clear(**evidence)
    if view.age_s is None and first.all > limits["cold_start.first"]:
        return unknown("when the server started is not exposed, and kvwatch did not see it")
    before = next((one for one in reversed(seen) if now.all - one.all >= limits["cold_start.then"]), first)
    in_time = before.t >= first.t and now.all - before.all >= limits["cold_start.then"]
    if in_time:
        usual = (now.seconds - before.seconds) / (now.all - before.all)
        in_time = usual <= limits["cold_start.share"] * first.seconds / first.all
    return judge_if(in_time and _young(view, first.all), evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="cold_start",
        title="First tokens were late only because the server had just started",
        when="the first requests of a server up for ≤ {within} (or its first {first}) had to wait ≥"
        " {late}, without a queue, and those since take ≤ {share} of that",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=300,
        judge=_cold_start,
        thresholds=(
            Threshold(
                "cold_start.late",
                2,
                "seconds",
                "A first token is late from here, or from the histogram's next bound.",
            ),
            Threshold("cold_start.within", 600, "seconds", "Since the server's start."),
            Threshold("cold_start.first", 20, "requests", "Or: the first so many requests of the server."),
            Threshold(
                "cold_start.waited",
                5,
                "seconds",
                "With more than this of 5 min in a queue, it is the queue.",
            ),
            Threshold(
                "cold_start.then",
                3,
                "requests",
                "Served since, before it is told.",
                low=1,
            ),
            Threshold(
                "cold_start.share",
                0.2,
                "ratio",
                "Their mean time to the first token, as a share of that of the first, late ones, at most.",
                high=1,
            ),
        ),
        meaning="The first requests after a start pay for compiling kernels, capturing graphs and filling caches."
        " It is over by itself; only the first users notice.",
        causes=("requests reached the server before it was warm",),
        actions=(
            Action("send a few warm-up requests, of the usual lengths, before the server takes traffic"),
            Action(
                "let readiness wait for that, and hold back alerts on time to first token for the first minutes"
            ),
        ),
        explains=("ttft_high",),
        origin="a public report of 89 s for the first request and 0.2 s from then on (vLLM 0.17.1); recordings of"
        " 0.11 and 0.13, whose first request takes 8 to 11 s",
    ),
)
