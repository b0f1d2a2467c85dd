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
        when="TTFT ≥ {late} without a queue within {within} of the start (or among the first {first} requests),"
        " then ≥ {then} requests with a mean TTFT ≤ {share} of that",
        severity=Severity.INFO,
        keep_s=300,
        judge=_cold_start,
        thresholds=(
            seconds(
                "late",
                2,
                "A first token is late if it took longer than this (rounded up to the histogram's next bucket"
                " bound).",
            ),
            seconds("within", 600, "Fires only for requests within this time after the server's start."),
            Threshold(
                "first",
                20,
                "requests",
                "Also fires for this many first requests of the server, however late they come.",
            ),
            seconds("waited", 5, "Ignored if requests waited in a queue for longer than this within 5 min."),
            Threshold("then", 3, "requests", "Fires only after at least this many later requests.", low=1),
            share(
                "share",
                0.2,
                "Fires if the mean TTFT of later requests is at most this share of the first ones'.",
            ),
        ),
        meaning="The first requests after a start wait for kernel compilation, graph capture and cold caches."
        " This resolves by itself.",
        causes=("Requests reached the server before it was warm",),
        levers=(
            levers.WARM_UP,
            levers.step(
                "readiness", "let readiness wait for the warm-up, and mute TTFT alerts for the first minutes"
            ),
        ),
        runbook=Runbook(
            "Only the first users after a start wait.",
            ("started", "ttft"),
            "after the next start, the first requests are as fast as later ones",
        ),
        explains=("ttft_high",),
        origin="a public report of 89 s for the first request and 0.2 s after that (vLLM 0.17.1); recordings of"
        " 0.11 and 0.13, where the first request takes 8 to 11 s",
    ),
)
