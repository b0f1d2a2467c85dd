"""Slow first tokens of a server that has just started and is not warm yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Severity, Symptom
from kvwatch.core.judgement.symptoms.views import WAITING, EngineView, once_per_sample, requires
from kvwatch.core.judgement.thresholds import Threshold, seconds, share
from kvwatch.core.model.snapshot import Histogram

_TTFT = "time_to_first_token_seconds"


class _FirstTokens(NamedTuple):
    """First tokens from the server's start until `t`: late ones, all, and the seconds to all of them."""

    t: float
    late: float
    all: float
    seconds: float


def _count(view: EngineView, t: float, seen: Histogram) -> _FirstTokens:
    """The first tokens in a histogram; late are those above its first bound from `cold_start.late` on."""
    late = view.limits["cold_start.late"]
    in_time = next(
        (n for bound, n in zip(seen.bounds, seen.counts, strict=True) if bound >= late), seen.count
    )
    return _FirstTokens(t, seen.count - in_time, seen.count, seen.sum)


@once_per_sample
def _since_start(view: EngineView) -> list[_FirstTokens]:
    """The counts since the server's start, at each full page of the last five minutes, the newest last."""
    newest = view.lifetime.get(_TTFT)
    rows = view.windows.histograms.since(view.now - FIVE_MINUTES)
    totals = [(row.t, row.by_signal[_TTFT]) for row in rows if _TTFT in row.by_signal]
    if newest is None or not newest.bounds or not totals or totals[-1][1].bounds != newest.bounds:
        return []
    now, seen = _count(view, view.now, newest), _count(view, *totals[-1])
    late, count, spent = now.late - seen.late, now.all - seen.all, now.seconds - seen.seconds
    counts = (_count(view, t, total) for t, total in totals)
    return [_FirstTokens(one.t, late + one.late, count + one.all, spent + one.seconds) for one in counts]


def _late_from_the_first(seen: Sequence[_FirstTokens]) -> _FirstTokens | None:
    """The counts when first tokens were first late, if these were the first that the server served."""
    i = next((i for i, one in enumerate(seen) if one.late > 0), None)
    if i is None:
        return None
    began_here = i > 0 and seen[i - 1].all == 0
    return seen[i] if began_here or 2 * seen[i].late >= seen[i].all else None


def _young(view: EngineView, served: float) -> bool:
    """Whether the server started recently or had hardly served yet."""
    if view.age_s is not None and view.age_s <= view.limits["cold_start.within"]:
        return True
    return served <= view.limits["cold_start.first"]


def may_be_cold(view: EngineView) -> bool:
    """Whether it is a cold start, or too early to rule one out."""
    first = _late_from_the_first(_since_start(view))
    early = first is not None and _young(view, first.all) and view.now - first.t <= MINUTE
    return early or "cold_start" in view.firing


@requires(_TTFT)
def _cold_start(view: EngineView) -> Judgement:
    limits = view.limits
    seen = _since_start(view)
    now = seen[-1] if seen else _FirstTokens(view.now, 0.0, 0.0, 0.0)
    waited = view.regime_seconds(FIVE_MINUTES, *WAITING)
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
        return Judgement.clear(**evidence)
    if view.age_s is None and first.all > limits["cold_start.first"]:
        return Judgement.unknown("the server's start time is not exposed, and kvwatch did not see the start")
    then = limits["cold_start.then"]
    before = next((one for one in reversed(seen) if now.all - one.all >= then), first)
    fast = before.t >= first.t and now.all - before.all >= then
    if fast:
        mean = (now.seconds - before.seconds) / (now.all - before.all)
        fast = mean <= limits["cold_start.share"] * first.seconds / first.all
    return Judgement.active_if(fast and _young(view, first.all), evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="cold_start",
        title="Slow first tokens right after a start",
        when="first requests of a server up for ≤ {within} (or its first {first}) took ≥ {late} to the first token"
        " without a queue, and the mean of the last ≥ {then} is ≤ {share} of theirs",
        severity=Severity.INFO,
        keep_s=300,
        judge=_cold_start,
        thresholds=(
            seconds("late", 2, "A first token is late above this, or the histogram's next bound."),
            seconds("within", 600, "Fires only within this time after the server's start."),
            Threshold("first", 20, "requests", "Or among this many first requests of the server."),
            seconds("waited", 5, "Ignored if requests waited longer than this within 5 min."),
            Threshold("then", 3, "requests", "Fires after this many later requests.", low=1),
            share("share", 0.2, "Mean TTFT of later requests, as a share of the first, at most."),
        ),
        meaning="The first requests after a start wait for kernel compilation, graph capture and cold caches. It"
        " resolves by itself; only the first users notice.",
        causes=("Requests reached the server before it was warm",),
        levers=(
            levers.WARM_UP,
            levers.step(
                "readiness", "let readiness wait for the warm-up, and mute TTFT alerts for the first minutes"
            ),
        ),
        runbook=Runbook(
            "The first users after a start waited; nobody else does.",
            ("started", "ttft"),
            "after the next start the first requests of users are as fast as later ones",
        ),
        explains=("ttft_high",),
        origin="a public report of 89 s for the first request and 0.2 s from then on (vLLM 0.17.1); recordings of"
        " 0.11 and 0.13, whose first request takes 8 to 11 s",
    ),
)
