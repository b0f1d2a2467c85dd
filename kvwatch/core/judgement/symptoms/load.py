"""Symptoms of the load itself: how it is spread, what of it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.core.history.window import increase, seconds_where
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.evidence_tools import clear, engines_lack, judge_if, mean_usage, unknown
from kvwatch.core.judgement.symptoms.row import (
    Action,
    EngineView,
    Judgement,
    Scope,
    Severity,
    Symptom,
    TargetView,
    Verdict,
)
from kvwatch.core.judgement.thresholds import Threshold
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import EngineKey, Snapshot


def _engine_imbalance(view: TargetView) -> Judgement:
    """Of engines of one model: those of several on one page, as a relay puts them there, have nothing to share."""
    models: dict[str, dict[EngineKey, EngineView]] = {}
    for key, engine in view.engines.items():
        models.setdefault(key.model_name, {})[key] = engine
    found = [_uneven(view, engines) for engines in models.values() if len(engines) > 1]
    order = (Verdict.ACTIVE, Verdict.UNKNOWN, Verdict.CLEAR)
    return min(found, key=lambda one: order.index(one.verdict), default=clear(engines=len(view.engines)))


def _uneven(view: TargetView, engines: Mapping[EngineKey, EngineView]) -> Judgement:
    if reason := engines_lack(engines, *CORE):
        return unknown(reason)
    limits = view.limits
    usages = {key: mean_usage(engine, TWO_MINUTES) for key, engine in engines.items()}
    watched = min(sum(seconds for _, seconds in e.held(TWO_MINUTES)) for e in engines.values())
    if watched < 0.9 * TWO_MINUTES:
        return clear(engines=len(engines), watched_seconds=watched)
    low, high = min(usages, key=usages.__getitem__), max(usages, key=usages.__getitem__)
    uneven = _uneven_seconds(engines)
    evidence: dict[str, Any] = {
        "engines": len(engines),
        "fullest_engine": high.engine,
        "fullest_usage_ratio": usages[high],
        "emptiest_engine": low.engine,
        "emptiest_usage_ratio": usages[low],
        "one_waits_another_idles_seconds": uneven,
        "window_seconds": TWO_MINUTES,
        "threshold_difference_ratio": limits["engine_imbalance.difference"],
        "threshold_fullest_ratio": limits["engine_imbalance.fullest"],
        "threshold_seconds": limits["engine_imbalance.share"] * TWO_MINUTES,
    }
    differ = usages[high] - usages[low] >= limits["engine_imbalance.difference"]
    several = seconds_where(engines[high].held(TWO_MINUTES), lambda row: (row.running or 0.0) > 1)
    matters = usages[high] >= limits["engine_imbalance.fullest"]
    can_be_spread = several > watched / 2
    return judge_if(
        (differ and matters and can_be_spread) or uneven > limits["engine_imbalance.share"] * TWO_MINUTES,
        evidence,
    )


def _uneven_seconds(engines: Mapping[EngineKey, EngineView]) -> float:
    """Seconds of the last two minutes in which one engine had requests waiting while another had none at all."""
    waits, idles, lasts = set(), set(), {}
    for engine in engines.values():
        for row, seconds in engine.held(TWO_MINUTES):
            lasts[row.t] = seconds
            if row.waiting:
                waits.add(row.t)
            elif not row.running:
                idles.add(row.t)  # or its gauges are not there, because it was never asked for anything
    return sum(lasts[t] for t in waits & idles)


def _requests_failing(view: TargetView) -> Judgement:
    if not view.engines:
        return unknown("no engine is scraped")
    reason = engines_lack(view.engines, "requests_finished_total") or next(
        filter(None, (_one_reason_for_all(engine.snapshot) for engine in view.engines.values())), ""
    )
    if reason:
        return unknown(reason)
    limits = view.limits
    finished = _count(view, FIVE_MINUTES, "requests_finished_total")
    errors = _count(view, FIVE_MINUTES, "requests_finished_total/error")
    aborts = _count(view, FIVE_MINUTES, "requests_finished_total/abort")
    rejected = _rejected(view, FIVE_MINUTES)
    came = finished + rejected
    evidence = {
        "finished_requests": finished,
        "errors": errors,
        "aborts": aborts,
        "rejections": None if view.rejections is None else rejected,
        "rejected_by": [limit for limit, count in (view.rejections or {}).items() if count > 0],
        "window_seconds": FIVE_MINUTES,
        "threshold_errors_ratio": limits["requests_failing.errors"],
        "threshold_aborts_ratio": limits["requests_failing.aborts"],
        "threshold_rejections_ratio": limits["requests_failing.rejections"],
        "threshold_requests": limits["requests_failing.requests"],
    }
    still = _count(view, MINUTE, "requests_finished_total/error", "requests_finished_total/abort")
    if came < limits["requests_failing.requests"] or still + _rejected(view, MINUTE) <= 0:
        return clear(**evidence)
    return judge_if(
        errors > limits["requests_failing.errors"] * max(finished, 1.0)
        or aborts > limits["requests_failing.aborts"] * max(finished, 1.0)
        or rejected > limits["requests_failing.rejections"] * came,
        evidence,
    )


def _one_reason_for_all(snapshot: Snapshot) -> str:
    """Why reasons of finishing say nothing: behind Ray vLLM 0.9.1 to 0.20 has them all under the last one created."""
    counted = [name for name, count in (snapshot.parts("requests_finished_total") or {}).items() if count > 0]
    if "ray" not in snapshot.features or len(counted) != 1 or counted[0] not in ("abort", "error"):
        return ""
    return (
        f"every finished request counts as '{counted[0]}': behind Ray vLLM before 0.21 mixes the reasons up"
    )


def _count(view: TargetView, window: float, *counters: str) -> float:
    """The increase of counters over all engines."""
    return sum(
        increase(engine.samples(window), counter) or 0.0
        for engine in view.engines.values()
        for counter in counters
    )


def _rejected(view: TargetView, window: float) -> float:
    """Requests refused at the door: a number of the server, which each of its engines has seen."""
    seen = (
        increase(engine.samples(window), "admission_rejections_total") for engine in view.engines.values()
    )
    return max((count for count in seen if count is not None), default=0.0)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="requests_failing",
        title="Requests fail or are refused",
        when="over 5 min errors > {errors} or aborts > {aborts} of finished, or refusals >"
        " {rejections} of all, of ≥ {requests} requests",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=60,
        judge=_requests_failing,
        thresholds=(
            Threshold(
                "requests_failing.errors", 0.05, "ratio", "Errors per finished request over 5 min.", high=1
            ),
            Threshold(
                "requests_failing.aborts", 0.1, "ratio", "Aborts per finished request over 5 min.", high=1
            ),
            Threshold(
                "requests_failing.rejections", 0.01, "ratio", "Refused at the door, of all that came.", high=1
            ),
            Threshold("requests_failing.requests", 10, "requests", "Finished or refused in 5 min, at least."),
        ),
        meaning="Users get errors. A request whose client went away is counted as an abort by some releases and"
        " nowhere by others, so few aborts prove nothing.",
        causes=(
            "refused: the queue is at --max-num-queued-reqs or --max-num-queued-tokens",
            "aborted: clients give up, often because they wait too long",
            "errors: the engine's log says which",
        ),
        actions=(
            Action("see in the evidence which of the three it is; for errors, read the engine's log"),
            Action("see whether another symptom fires: what makes requests wait is what to mend first"),
            Action(
                "if they are refused and could have waited: raise --max-num-queued-reqs; if not, add a replica",
                "--max-num-queued-reqs",
                ("v1",),
                feature="watermark",
            ),
        ),
        origin="5 % and 10 % as in vllm-doctor and the alerts of the gateway inference extension; a recording with"
        " --max-num-queued-reqs",
    ),
    Symptom(
        id="engine_imbalance",
        title="Engines of one server are loaded unlike each other",
        when="over 2 min mean usage differs by ≥ {difference} (fullest ≥ {fullest}), or one waits"
        " while another idles for > {share} of it",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=60,
        judge=_engine_imbalance,
        thresholds=(
            Threshold(
                "engine_imbalance.difference", 0.3, "ratio", "Of mean KV usage over 2 min, at least.", high=1
            ),
            Threshold(
                "engine_imbalance.fullest",
                0.5,
                "ratio",
                "Mean usage of the fullest, at least, where several run most of the time.",
                high=1,
            ),
            Threshold(
                "engine_imbalance.share",
                0.5,
                "ratio",
                "Or: share of 2 min in which one has requests waiting while another has none at all.",
                high=1,
            ),
        ),
        meaning="One data-parallel engine is much fuller than another, or has requests waiting while another idles:"
        " capacity that is paid for and not used. Averages over engines hide it.",
        causes=(
            "a router or affinity that sends more to one engine, or all long requests to it",
            "few clients with connections that stay",
        ),
        actions=(
            Action("route by load of the engines: fewest waiting first, or by KV usage"),
            Action("loosen session affinity, or spread the largest sessions"),
            Action("look whether the long requests all go to one engine"),
        ),
        origin="vllm-htop and vllm-doctor (a difference of 0.15 to 0.3); vLLM's console, which averages over engines",
    ),
)
