"""How the load is spread over engines, and which of its requests fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvwatch.core.history.window import increase, seconds_where
from kvwatch.core.judgement.advice import levers
from kvwatch.core.judgement.advice.levers import Lever
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.derive import FIVE_MINUTES, MINUTE, TWO_MINUTES
from kvwatch.core.judgement.symptoms.row import Judgement, Runbook, Scope, Severity, Symptom, Verdict
from kvwatch.core.judgement.symptoms.views import EngineView, TargetView, engines_missing
from kvwatch.core.judgement.thresholds import Threshold, share
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import EngineKey, Snapshot


def _engine_imbalance(view: TargetView) -> Judgement:
    """Compares only engines of one model: a relay may put several models on one page, which share no load."""
    models: dict[str, dict[EngineKey, EngineView]] = {}
    for key, engine in view.engines.items():
        models.setdefault(key.model_name, {})[key] = engine
    found = [_imbalance(view, engines) for engines in models.values() if len(engines) > 1]
    order = (Verdict.ACTIVE, Verdict.UNKNOWN, Verdict.CLEAR)
    default = Judgement.clear(engines=len(view.engines))
    return min(found, key=lambda one: order.index(one.verdict), default=default)


def _imbalance(view: TargetView, engines: Mapping[EngineKey, EngineView]) -> Judgement:
    if reason := engines_missing(engines, *CORE):
        return Judgement.unknown(reason)
    limits = view.limits
    usages = {key: engine.mean_usage(TWO_MINUTES) for key, engine in engines.items()}
    watched = min(sum(s for _, s in engine.weighted_samples(TWO_MINUTES)) for engine in engines.values())
    if watched < 0.9 * TWO_MINUTES:
        return Judgement.clear(engines=len(engines), watched_seconds=watched)
    low, high = min(usages, key=usages.__getitem__), max(usages, key=usages.__getitem__)
    one_idles, need = _one_waits_another_idles(engines), limits["engine_imbalance.share"] * TWO_MINUTES
    evidence: dict[str, Any] = {
        "engines": len(engines),
        "fullest_engine": high.engine,
        "fullest_usage_ratio": usages[high],
        "emptiest_engine": low.engine,
        "emptiest_usage_ratio": usages[low],
        "one_waits_another_idles_seconds": one_idles,
        "window_seconds": TWO_MINUTES,
        "threshold_difference_ratio": limits["engine_imbalance.difference"],
        "threshold_fullest_ratio": limits["engine_imbalance.fullest"],
        "threshold_seconds": need,
    }
    several = seconds_where(engines[high].weighted_samples(TWO_MINUTES), lambda row: (row.running or 0.0) > 1)
    differ = (
        usages[high] - usages[low] >= limits["engine_imbalance.difference"]
        and usages[high] >= limits["engine_imbalance.fullest"]
        and several > watched / 2  # a single long request can't be spread
    )
    return Judgement.active_if(differ or one_idles > need, evidence)


def _one_waits_another_idles(engines: Mapping[EngineKey, EngineView]) -> float:
    """Seconds of the last two minutes in which one engine had a queue while another was empty."""
    waits, idles, lasts = set(), set(), {}
    for engine in engines.values():
        for row, seconds in engine.weighted_samples(TWO_MINUTES):
            lasts[row.t] = seconds
            if row.waiting:
                waits.add(row.t)
            elif not row.running:
                idles.add(row.t)  # or without gauges, because it never had a request
    return sum(lasts[t] for t in waits & idles)


def _requests_failing(view: TargetView) -> Judgement:
    if not view.engines:
        return Judgement.unknown("no engine is scraped")
    reason = engines_missing(view.engines, "requests_finished_total") or next(
        filter(None, (_mixed_up_reasons(engine.snapshot) for engine in view.engines.values())), ""
    )
    if reason:
        return Judgement.unknown(reason)
    limits = view.limits
    finished = _count(view, FIVE_MINUTES, "requests_finished_total")
    errors = _count(view, FIVE_MINUTES, "requests_finished_total/error")
    aborts = _count(view, FIVE_MINUTES, "requests_finished_total/abort")
    rejected = _rejected(view, FIVE_MINUTES)
    received = finished + rejected
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
    if received < limits["requests_failing.requests"] or still + _rejected(view, MINUTE) <= 0:
        return Judgement.clear(**evidence)
    return Judgement.active_if(
        errors > limits["requests_failing.errors"] * max(finished, 1.0)
        or aborts > limits["requests_failing.aborts"] * max(finished, 1.0)
        or rejected > limits["requests_failing.rejections"] * received,
        evidence,
    )


def _mixed_up_reasons(snapshot: Snapshot) -> str:
    """Why finish reasons mean nothing; empty if they do. Behind Ray, vLLM 0.9.1 to 0.20 counts all under one."""
    counted = [name for name, count in (snapshot.parts("requests_finished_total") or {}).items() if count > 0]
    if "ray" not in snapshot.features or len(counted) != 1 or counted[0] not in ("abort", "error"):
        return ""
    return (
        f"every finished request counts as '{counted[0]}': behind Ray, vLLM before 0.21 mixes the reasons up"
    )


def _count(view: TargetView, window: float, *counters: str) -> float:
    """The increase of counters over all engines."""
    return sum(
        increase(engine.samples(window), counter) or 0.0
        for engine in view.engines.values()
        for counter in counters
    )


def _rejected(view: TargetView, window: float) -> float:
    """Requests rejected at admission. It is a number of the server, so each of its engines has the same."""
    seen = (
        increase(engine.samples(window), "admission_rejections_total") for engine in view.engines.values()
    )
    return max((count for count in seen if count is not None), default=0.0)


def _too_many(part: str) -> Callable[[Situation], bool]:
    """Whether errors, aborts or rejections are above their threshold."""
    name = {"error": "errors", "abort": "aborts", "reject": "rejections"}[part]

    def above(at: Situation) -> bool:
        count, total = at.evidence.get(name) or 0.0, at.evidence.get("finished_requests") or 0.0
        if name == "rejections":
            total += count
        return bool(count > at.evidence.get(f"threshold_{name}_ratio", 0.0) * max(total, 1.0))

    return above


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="requests_failing",
        title="Requests fail or are rejected",
        when="over 5 min with ≥ {requests} requests: errors > {errors} or aborts > {aborts} of finished"
        " requests, or rejections > {rejections} of all requests",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        judge=_requests_failing,
        thresholds=(
            share("errors", 0.05, "Fires if more than this share of finished requests are errors."),
            share("aborts", 0.1, "Fires if more than this share of finished requests are aborts."),
            share("rejections", 0.01, "Fires if more than this share of all requests are rejected."),
            Threshold("requests", 10, "requests", "Ignored if there were fewer requests than this in 5 min."),
        ),
        meaning="Users get errors. Some releases count a request whose client left as an abort; others do not"
        " count it. Few aborts therefore do not show that few clients left.",
        causes=(
            "Rejected with 503: the queue is at --max-num-queued-reqs or --max-num-queued-tokens",
            "Aborted: clients give up, often because they wait too long",
            "Errors: see the engine's log",
        ),
        levers=(
            levers.step(
                "fix_cause", "check for other firing symptoms first; fix whatever makes requests wait"
            ),
            levers.step(
                "read_errors",
                "read the engine's log around the first error",
                when=_too_many("error"),
                condition="errors",
            ),
            levers.step(
                "check_timeouts",
                "compare the clients' timeouts with TTFT and end-to-end latency",
                when=_too_many("abort"),
                condition="aborts",
            ),
            levers.ADD_REPLICA,
            Lever(
                id="max_num_queued_reqs",
                text="raise --max-num-queued-reqs, if rejected requests could have waited",
                cost="first tokens come later",
                option="--max-num-queued-reqs",
                restart=True,
                generations=("v1",),
                feature="watermark",
                when=_too_many("reject"),
                condition="rejections",
            ),
        ),
        runbook=Runbook(
            "Users get errors or give up.",
            ("finished", "refused", "regimes"),
            "requests finish with reason stop or length, and no request is rejected",
        ),
        origin="5 % and 10 % as in vllm-doctor and the alerts of the gateway inference extension; a recording with"
        " --max-num-queued-reqs",
    ),
    Symptom(
        id="engine_imbalance",
        title="Engines of one server are loaded unevenly",
        when="over 2 min: mean KV cache usage differs by ≥ {difference} of the cache (fullest engine ≥"
        " {fullest}), or for > {share} of the time one engine has a queue while another idles",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        judge=_engine_imbalance,
        thresholds=(
            share(
                "difference",
                0.3,
                "Fires if the mean KV cache usage of two engines over 2 min differs by at least this, absolute.",
            ),
            share(
                "fullest",
                0.5,
                "A difference counts only if the fullest engine has at least this mean usage, and runs"
                " several requests most of the time.",
            ),
            share(
                "share",
                0.5,
                "Also fires if one engine has a queue while another idles for more than this share of 2 min.",
            ),
        ),
        meaning="One data-parallel engine is much fuller than another, or has a queue while another idles. Paid"
        " capacity stays unused. Averages over engines hide this.",
        causes=(
            "A router or session affinity sends more to one engine, or all long requests to it",
            "A few clients with long-lived connections",
        ),
        levers=(
            Lever(
                id="route_by_load",
                text="route by load: fewest waiting first, or lowest KV cache usage",
                relieves=levers.Resource.ROUTING,
                cost="fewer prefix cache hits, unless the router knows prefixes, too",
            ),
            levers.step("loosen_affinity", "loosen session affinity, or spread the largest sessions"),
            levers.step("check_long", "check whether all long requests go to one engine"),
        ),
        do_not=(levers.NOT_CACHE_IMBALANCE,),
        runbook=Runbook(
            "Requests at one engine wait while another has room.",
            ("usage", "running", "waiting", "regimes"),
            "at the same load, usage and queues of the engines are similar",
        ),
        origin="vllm-htop and vllm-doctor (a difference of 0.15 to 0.3); vLLM's console, which averages over engines",
    ),
)
