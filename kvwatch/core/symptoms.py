"""The symptom table: one row each. A row owns everything about its symptom.

A judge looks at one engine (or one target) at one instant and gives a verdict: clear, active or unknown, with
the numbers it judged. It holds no state: how long a verdict must last is the row's `for_s` and `keep_s`, and
`lifecycle.py` does the waiting. "More than half of a minute" is inside the verdict where the window is.

Adding a symptom is one row here and one replay in the tests: a hit, a near miss, a missing signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvwatch.core.derive import FIVE_MINUTES, MINUTE, TWO_MINUTES, Derived, labelled
from kvwatch.core.outcome import REACHABLE, Failure
from kvwatch.core.regimes import Regime
from kvwatch.core.signals import CORE
from kvwatch.core.snapshot import Snapshot
from kvwatch.core.thresholds import DERIVED_THRESHOLDS, REGIME_THRESHOLDS, Limits, Threshold
from kvwatch.core.window import Sample, increase, seconds_where, weights


class Verdict(StrEnum):
    CLEAR = "clear"
    ACTIVE = "active"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """By what users feel: critical wakes someone, warning tells someone, info is context."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Scope(StrEnum):
    ENGINE = "engine"
    TARGET = "target"


Evidence = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the numbers it rests on; `reason` says why it is unknown."""

    verdict: Verdict
    evidence: Evidence = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `flag` is vLLM's own option, shown only to generations (`v0`, `v1`) that have it, and,
    with `feature`, only to servers whose metrics tell that they have it."""

    text: str
    flag: str = ""
    generations: tuple[str, ...] = ("v0", "v1")
    feature: str = ""

    def fits(self, generation: str, features: frozenset[str]) -> bool:
        return generation in self.generations and (not self.feature or self.feature in features)


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a judge of an engine sees."""

    snapshot: Snapshot
    derived: Derived
    regime: Regime
    samples: Callable[[float], list[Sample]]
    """The samples of the last so many seconds."""
    now: float
    limits: Mapping[str, float]
    scraped: bool
    """False while the target is not scraped: everything about the engine is old, so unknown."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of vLLM as kvwatch saw it. Times are monotonic seconds but `started_at`, unix."""

    at: float
    counters_fell: int
    started_at: float | None
    usage_before: float | None
    pressure_before: float | None
    waiting_before: float | None
    unseen_s: float
    """Seconds between the last answer before and the first after."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """What a judge of a target sees."""

    engines: Mapping[Any, Snapshot]
    configured: bool
    failure: Failure | None
    detail: str
    failing_for: float
    unknown_families: tuple[str, ...]
    restart: Restart | None
    now: float
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Symptom:
    """One row of the table.

    `for_s`: how long the verdict must be active before it fires; `keep_s`: how long it must be clear before
    it is over (damps flapping). `causes` most likely first, `actions` in the order to try. `explains` names
    symptoms that this one, when firing, accounts for. `origin` is where condition and thresholds come from.
    """

    id: str
    title: str
    severity: Severity
    scope: Scope
    for_s: float
    keep_s: float
    judge: Callable[[Any], Judgement]
    meaning: str
    causes: tuple[str, ...]
    actions: tuple[Action, ...]
    origin: str
    thresholds: tuple[Threshold, ...] = ()
    explains: tuple[str, ...] = ()

    def actions_for(self, generation: str, features: frozenset[str]) -> tuple[Action, ...]:
        return tuple(action for action in self.actions if action.fits(generation, features))


def _active(when: bool, evidence: Evidence) -> Judgement:
    return Judgement(Verdict.ACTIVE if when else Verdict.CLEAR, evidence)


def _clear(**evidence: Any) -> Judgement:
    return Judgement(Verdict.CLEAR, evidence)


def _unknown(reason: str) -> Judgement:
    return Judgement(Verdict.UNKNOWN, {}, reason)


def _needs(view: EngineView, *signals: str) -> str:
    """Why an engine can't be judged by these signals; empty if it can."""
    if not view.scraped:
        return "the server is not scraped"
    for name in signals:
        if name in view.snapshot.missing:
            return f"{name}: {view.snapshot.missing[name]}"
    return ""


def _gauges(view: EngineView) -> dict[str, Any]:
    """The numbers that every judgement of an engine shows."""
    return {
        "kv_cache_usage_ratio": view.snapshot.number("kv_cache_usage_ratio"),
        "requests_running": view.snapshot.number("requests_running"),
        "requests_waiting": view.snapshot.number("requests_waiting"),
        "kv_cache_demand_ratio": view.derived.get("kv_cache_demand_ratio"),
    }


def _regime_seconds(view: EngineView, window: float, *regimes: Regime) -> float:
    rows = view.samples(window)
    return seconds_where(weights(rows, view.now - window), lambda row: row.regime in regimes)


# -- the cache ------------------------------------------------------------------------------------------------


def _kv_near_full(view: EngineView) -> Judgement:
    if reason := _needs(view, *CORE):
        return _unknown(reason)
    rows = view.samples(TWO_MINUTES)
    mark, share = view.limits["regime.full_usage"], view.limits["kv_near_full.share"]
    held = weights(rows, view.now - TWO_MINUTES)
    full = seconds_where(held, lambda r: r.usage is not None and r.usage >= mark and not r.waiting)
    evidence = _gauges(view) | {
        "full_and_nothing_waiting_seconds": full,
        "window_seconds": TWO_MINUTES,
        "threshold_seconds": share * TWO_MINUTES,
        "threshold_usage_ratio": mark,
    }
    if full > share * TWO_MINUTES:
        return _active(True, evidence)
    left = _seconds_to_full(rows, view)
    if left is not None:
        return _active(True, evidence | {"full_in_seconds": left, "threshold_full_in_seconds": FIVE_MINUTES})
    return _clear(**evidence)


def _seconds_to_full(rows: list[Sample], view: EngineView) -> float | None:
    """Seconds until the cache is full if it goes on as over the last two minutes; None if it does not rise so.

    Asked of a whole window, above a floor, and of both its halves, so that no ramp-up of a fresh load counts.
    """
    usable = [(r.covered, r.usage) for r in rows if r.usage is not None]
    newest = rows[-1] if rows else None
    if newest is None or newest.usage is None or newest.waiting or len(usable) < 8:
        return None
    span = usable[-1][0] - usable[0][0]
    if (
        span < 0.9 * TWO_MINUTES
        or newest.usage < view.limits["kv_near_full.course_from"]
        or newest.usage >= 1
    ):
        return None
    thirds = [
        [u for t, u in usable if low <= (t - usable[0][0]) / span <= low + 1 / 3] for low in (0, 1 / 3, 2 / 3)
    ]
    if not all(thirds):
        return None
    first, second, third = (sum(part) / len(part) for part in thirds)
    if not first < second < third:
        return None
    slope = (third - first) / (span * 2 / 3)
    left = (1.0 - newest.usage) / slope
    return left if left <= FIVE_MINUTES else None


def _preemptions(view: EngineView) -> tuple[float | None, float]:
    rows = view.samples(TWO_MINUTES)
    preempted, finished = increase(rows, "preemptions_total"), increase(rows, "requests_finished_total")
    if preempted is None and len(rows) == 1:
        preempted = 0.0
    return preempted, finished or 0.0


def _storm(preempted: float, finished: float, limits: Mapping[str, float]) -> bool:
    """Preemptions that are no accident: several, and a good share of what finishes."""
    enough = preempted >= limits["kv_thrashing.preemptions"]
    return enough and preempted >= limits["kv_thrashing.per_request"] * max(finished, 1.0)


def _kv_exhausted(view: EngineView) -> Judgement:
    if reason := _needs(view, *CORE):
        return _unknown(reason)
    waited = _regime_seconds(view, MINUTE, Regime.KV_LIMITED)
    preempted, finished = _preemptions(view)
    need = view.limits["kv_exhausted.share"] * MINUTE
    evidence = _gauges(view) | {
        "kv_limited_seconds": waited,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
        "preemptions": preempted,
        "finished_requests": finished,
    }
    storm = preempted is not None and _storm(preempted, finished, view.limits)
    return _active(waited > need and not storm, evidence)


def _kv_thrashing(view: EngineView) -> Judgement:
    if reason := _needs(view, *CORE, "preemptions_total"):
        return _unknown(reason)
    preempted, finished = _preemptions(view)
    demand = view.derived.get("kv_cache_demand_ratio")
    peak = view.derived.get("kv_cache_usage_peak_1m_ratio")
    evidence = _gauges(view) | {
        "preemptions": preempted,
        "finished_requests": finished,
        "window_seconds": TWO_MINUTES,
        "threshold_preemptions": view.limits["kv_thrashing.preemptions"],
        "threshold_preemptions_per_request": view.limits["kv_thrashing.per_request"],
        "kv_cache_usage_peak_1m_ratio": peak,
    }
    pressed = (demand is not None and demand >= view.limits["regime.demand"]) or (
        peak is not None and peak >= view.limits["regime.full_usage"]
    )
    return _active(preempted is not None and pressed and _storm(preempted, finished, view.limits), evidence)


def _sequence_limited(view: EngineView) -> Judgement:
    if reason := _needs(view, *CORE):
        return _unknown(reason)
    waited = _regime_seconds(view, MINUTE, Regime.SEQUENCE_LIMITED)
    need = view.limits["sequence_limited.share"] * MINUTE
    evidence = _gauges(view) | {
        "sequence_limited_seconds": waited,
        "window_seconds": MINUTE,
        "threshold_seconds": need,
    }
    return _active(waited > need, evidence)


def _kv_usage_stuck(view: EngineView) -> Judgement:
    if reason := _needs(view, *CORE):
        return _unknown(reason)
    usage, running, waiting = (view.snapshot.number(name) for name in CORE)
    mark = view.limits["kv_usage_stuck.usage"]
    evidence = _gauges(view) | {"threshold_usage_ratio": mark}
    asleep = view.snapshot.part("engine_sleep_state", "awake") == 0.0
    stuck = usage is not None and usage > mark and running == 0 and waiting == 0 and not asleep
    return _active(stuck, evidence)


def _engine_stalled(view: EngineView) -> Judgement:
    if reason := _needs(view, "requests_running", "requests_waiting"):
        return _unknown(reason)
    if "last_progress_age_seconds" in view.derived.unknown:
        return _unknown(view.derived.unknown["last_progress_age_seconds"])
    evidence = _gauges(view) | {
        "last_progress_age_seconds": view.derived.get("last_progress_age_seconds"),
        "threshold_seconds": view.limits["regime.stalled_after"],
    }
    return _active(view.regime is Regime.STALLED, evidence)


# -- prefix caching -------------------------------------------------------------------------------------------


def _mean_prompt(view: EngineView, window: float) -> tuple[float | None, float]:
    """Mean prompt length in tokens and the number of requests it is of."""
    rows = view.samples(window)
    count = increase(rows, "request_prompt_tokens") or 0.0
    total = increase(rows, "request_prompt_tokens/sum")
    return (total / count if total is not None and count else None), count


def _prefix_cache_ineffective(view: EngineView) -> Judgement:
    if reason := _needs(view):
        return _unknown(reason)
    if view.snapshot.config.enable_prefix_caching is False:
        return _clear(prefix_caching="off")
    if reason := _needs(view, "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total"):
        return _unknown(reason)
    rows = view.samples(FIVE_MINUTES)
    queried = increase(rows, "prefix_cache_queried_tokens_total") or 0.0
    limits = view.limits
    block = view.snapshot.config.block_size
    mean, requests = _mean_prompt(view, FIVE_MINUTES)
    ratio = view.derived.get("prefix_cache_hit_ratio")
    evidence = {
        "prefix_cache_hit_ratio": ratio,
        "queried_tokens": queried,
        "window_seconds": FIVE_MINUTES,
        "mean_prompt_tokens": mean,
        "finished_requests": requests,
        "block_size_tokens": block,
        "threshold_hit_ratio": limits["prefix_cache_ineffective.hit_ratio"],
        "threshold_queried_tokens": limits["prefix_cache_ineffective.queried_tokens"],
    }
    if queried < limits["prefix_cache_ineffective.queried_tokens"]:
        return _clear(**evidence)  # too little was looked up to say anything
    if requests < limits["prefix_cache_ineffective.requests"] or mean is None:
        return _clear(**evidence)
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return Judgement(Verdict.UNKNOWN, evidence, view.derived.untrusted["prefix_cache_hit_ratio"])
    if block is not None and mean < limits["prefix_cache_ineffective.blocks"] * block:
        return _clear(**evidence)  # prompts of a block or two have little to share
    return _active(ratio is not None and ratio < limits["prefix_cache_ineffective.hit_ratio"], evidence)


def _prefix_cache_off(view: EngineView) -> Judgement:
    if reason := _needs(view, "cache_config"):
        return _unknown(reason)
    enabled = view.snapshot.config.enable_prefix_caching
    if enabled:
        return _clear(prefix_caching="on")
    if enabled is None:
        return _unknown("vLLM's cache configuration does not say whether prefix caching is on")
    if reason := _needs(view, "request_prompt_tokens"):
        return _unknown(reason)
    name = labelled("request_prompt_tokens_percentile", 0.5)
    median, mark = view.derived.get(name), view.limits["prefix_cache_off.prompt_tokens"]
    evidence = {"prefix_caching": "off", name: median, "threshold_prompt_tokens": mark}
    return _active(median is not None and median >= mark, evidence)


# -- the server -----------------------------------------------------------------------------------------------


def _engine_restarted(view: TargetView) -> Judgement:
    restart = view.restart
    shown = view.limits["engine_restarted.shown"]
    if restart is None or view.now - restart.at > shown:
        return _clear()
    high = restart.pressure_before is not None and restart.pressure_before >= 0.5
    evidence = {
        "seconds_ago": view.now - restart.at,
        "unseen_seconds": restart.unseen_s,
        "started_at_unix_seconds": restart.started_at,
        "counters_that_fell": restart.counters_fell,
        "kv_cache_usage_before_ratio": restart.usage_before,
        "cache_pressure_before": restart.pressure_before,
        "requests_waiting_before": restart.waiting_before,
        "pressure_was_high": high,
    }
    return _active(True, evidence)


def _target_down(view: TargetView) -> Judgement:
    after = view.limits["target_down.after"]
    if view.failure is None or view.failure in REACHABLE:
        return _clear()
    evidence = {
        "failure": str(view.failure),
        "detail": view.detail,
        "failing_seconds": view.failing_for,
        "threshold_seconds": after,
    }
    return _active(view.failing_for >= after, evidence)


def _signals_missing(view: TargetView) -> Judgement:
    if view.failure is not None and view.failure not in REACHABLE:
        return _unknown("the server is not scraped")
    evidence: dict[str, Any] = {"unknown_families": list(view.unknown_families)[:10]}
    if view.failure is not None:
        evidence |= {"failure": str(view.failure), "detail": view.detail}
        return _active(True, evidence)
    if not view.engines:
        if view.configured:
            return _clear(
                detail="idle since its start: this vLLM exposes its engine's metrics with the first request"
            )
        evidence["detail"] = (
            "a vLLM answers, without any engine metric: was it started with --disable-log-stats?"
        )
        return _active(True, evidence)
    lacking = {
        f"{key.model_name}/{key.engine}: {name}": snapshot.missing[name]
        for key, snapshot in view.engines.items()
        for name in CORE
        if name in snapshot.missing and not snapshot.missing[name].startswith("not yet")
    }
    return _active(bool(lacking), evidence | {"missing": lacking})


LENGTH = Action(
    "limit the length first: what the service really serves, not the model's maximum", "--max-model-len"
)
MORE_KV = Action("give the cache more memory, if the GPU has some left", "--gpu-memory-utilization")
FEWER = Action("admit fewer requests at once: what fits is about running x full / demand", "--max-num-seqs")
FP8 = Action(
    "halve the bytes per token with an FP8 cache, after checking that GPU and attention backend support it, that"
    " the scales are right, and that answers on long contexts stay good",
    "--kv-cache-dtype fp8",
)
REPLICA = Action("add a replica, or route long requests to a server of their own")
PREFIX = Action("share prefixes: fixed text first, variable values last", "--enable-prefix-caching")

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        id="target_down",
        title="vLLM is not answering",
        severity=Severity.CRITICAL,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=0,
        judge=_target_down,
        thresholds=(Threshold("target_down.after", 30, "seconds", "Scrapes fail for this long."),),
        meaning="Every scrape has failed for a while; nothing is known about the server.",
        causes=(
            "the server stopped or is still loading its model",
            "wrong address or port, or something between (network policy, TLS)",
            "its event loop is too busy to answer in time (kind: timeout)",
        ),
        actions=(
            Action("look at the server's process and the last lines of its log"),
            Action("ask /health and /metrics by hand from this host"),
        ),
        explains=("kv_near_full", "kv_exhausted", "kv_thrashing", "sequence_limited"),
        origin="blackbox practice; the kind of failure is named because the remedy differs by kind",
    ),
    Symptom(
        id="engine_stalled",
        title="The engine is stalled while its health check may be green",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=10,
        judge=_engine_stalled,
        meaning="Requests are in the engine, scrapes succeed, and no counter and no usage has moved. A hung engine"
        " freezes its gauges, so nothing else tells.",
        causes=(
            "the engine process hangs or died without the API server noticing",
            "a request at the head of the queue can never be scheduled",
            "before vLLM 0.10: the clients of the last requests went away, and the gauges kept their last values",
        ),
        actions=(
            Action("send one short request: if it answers, the gauges are stale and nothing hangs"),
            Action(
                "collect before restarting: the log's last lines, py-spy dump of the engine process, nvidia-smi"
            ),
            Action("restart the server; route traffic away from it until then"),
        ),
        explains=("kv_near_full", "kv_exhausted", "kv_thrashing", "sequence_limited", "kv_usage_stuck"),
        origin="vllm-project/vllm #45414, #45388, #39734; real recordings of a stopped and of a dead engine",
    ),
    Symptom(
        id="kv_thrashing",
        title="Requests are preempted and computed again",
        severity=Severity.CRITICAL,
        scope=Scope.ENGINE,
        for_s=10,
        keep_s=60,
        judge=_kv_thrashing,
        thresholds=(
            Threshold(
                "kv_thrashing.per_request", 0.2, "ratio", "Preemptions per finished request over 2 min."
            ),
            Threshold("kv_thrashing.preemptions", 3, "requests", "Fewer preemptions in 2 min are no storm."),
        ),
        meaning="The cache is too small for what is admitted: running requests lose their blocks and are computed"
        " again, which costs throughput and stretches every latency.",
        causes=(
            "more requests are admitted than the cache holds at their full length",
            "long outputs grow after admission, when only the prompt was reserved for",
        ),
        actions=(
            LENGTH,
            FEWER,
            Action("keep some blocks free at admission", "--watermark", ("v1",), feature="watermark"),
            FP8,
            MORE_KV,
            REPLICA,
        ),
        explains=("kv_near_full", "kv_exhausted", "prefix_cache_ineffective"),
        origin="vllm-project/vllm #44594 (2.4 preemptions a request), tuning guide part 7",
    ),
    Symptom(
        id="kv_exhausted",
        title="Requests wait for KV cache",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_kv_exhausted,
        thresholds=(Threshold("kv_exhausted.share", 0.5, "ratio", "Share of 1 min in kv_limited.", high=1),),
        meaning="The cache is full and requests queue for it; those that run are left alone (few preemptions).",
        causes=(
            "the load needs more cache than there is",
            "requests are longer than the cache was planned for",
        ),
        actions=(
            LENGTH,
            MORE_KV,
            FP8,
            PREFIX,
            REPLICA,
            Action("do not raise --max-num-seqs: there is no cache for more"),
        ),
        explains=("kv_near_full",),
        origin="a public incident: 278 of 280 s mean TTFT in the queue of a full cache, few preemptions",
    ),
    Symptom(
        id="sequence_limited",
        title="Requests wait for a slot while the cache has room",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=60,
        judge=_sequence_limited,
        thresholds=(
            Threshold("sequence_limited.share", 0.5, "ratio", "Share of 1 min in the regime.", high=1),
        ),
        meaning="As many requests run as --max-num-seqs allows; more would fit the cache.",
        causes=("--max-num-seqs is low for this load",),
        actions=(
            Action(
                "raise it stepwise (by half), and watch inter-token latency after each step", "--max-num-seqs"
            ),
            Action("if inter-token latency is at its limit already, add a replica"),
        ),
        origin="kaito-project/kaito #2216 (running stuck at 256, cache at 20 %), tuning guide part 7",
    ),
    Symptom(
        id="kv_near_full",
        title="The cache is full, and nothing waits yet",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=0,
        keep_s=120,
        judge=_kv_near_full,
        thresholds=(
            Threshold(
                "kv_near_full.share", 0.5, "ratio", "Share of 2 min full with nothing waiting.", high=1
            ),
            Threshold(
                "kv_near_full.course_from", 0.8, "ratio", "Usage from which a rise is followed.", high=1
            ),
        ),
        meaning="Nothing is lost yet: it fits, barely. The next requests will wait or preempt.",
        causes=("the load is about to outgrow the cache",),
        actions=(LENGTH, FEWER, FP8),
        origin="tuning guide parts 7 and 14: high usage can be healthy, so this is information",
    ),
    Symptom(
        id="kv_usage_stuck",
        title="Cache in use while nothing runs or waits",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=60,
        keep_s=10,
        judge=_kv_usage_stuck,
        thresholds=(Threshold("kv_usage_stuck.usage", 0.05, "ratio", "Usage above this.", high=1),),
        meaning="Blocks are held by nobody who is alive, or the gauge is frozen; routers that go by it will avoid"
        " this server.",
        causes=(
            "blocks leaked after aborted requests",
            "the gauge was not written since a mass abort",
            "blocks of finished requests wait to be fetched by a decode server (disaggregated prefill)",
        ),
        actions=(
            Action("send one short request: a frozen gauge goes right with the next step"),
            Action("if usage stays, restart at a quiet moment and report it"),
        ),
        origin="vllm-project/vllm #29928 (usage 0.99 for ever, the router starved the pod)",
    ),
    Symptom(
        id="prefix_cache_off",
        title="Prefix caching is off and prompts are long",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=60,
        judge=_prefix_cache_off,
        thresholds=(Threshold("prefix_cache_off.prompt_tokens", 1000, "tokens", "Median prompt over 1 h."),),
        meaning="Each prompt is computed whole. Where prompts share a beginning, that is wasted prefill.",
        causes=("it was switched off", "v0 engine: it is off unless asked for"),
        actions=(PREFIX, Action("then look at the hit ratio: it only helps prompts that begin alike")),
        origin="tuning guide part 8",
    ),
    Symptom(
        id="prefix_cache_ineffective",
        title="The prefix cache hardly ever hits",
        severity=Severity.INFO,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=120,
        judge=_prefix_cache_ineffective,
        thresholds=(
            Threshold("prefix_cache_ineffective.hit_ratio", 0.2, "ratio", "Hit ratio below this.", high=1),
            Threshold(
                "prefix_cache_ineffective.queried_tokens", 10_000, "tokens", "Looked up in 5 min, at least."
            ),
            Threshold("prefix_cache_ineffective.requests", 20, "requests", "Finished in 5 min, at least."),
            Threshold("prefix_cache_ineffective.blocks", 4, "ratio", "Mean prompt, in blocks, at least."),
        ),
        meaning="Prompts are long enough to share a beginning, and hardly any is found in the cache.",
        causes=(
            "ids, times or user names at the head of the template: one different token there ruins the rest",
            "prompts really have nothing in common",
            "the shared part is shorter than a block",
        ),
        actions=(
            Action("put fixed text first (system prompt, tools, examples), variable values last"),
            Action("compare two prompts token by token: where do they part?"),
            Action("send requests of one conversation to the same server"),
        ),
        origin="tuning guide part 8; minimum volume as in vllm-doctor and llm-d's alerts",
    ),
    Symptom(
        id="engine_restarted",
        title="vLLM restarted",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=0,
        keep_s=0,
        judge=_engine_restarted,
        thresholds=(Threshold("engine_restarted.shown", 300, "seconds", "Shown for this long after it."),),
        meaning="The server is a new process: its counters began anew, its cache is cold.",
        causes=(
            "a deployment, or someone restarted it",
            "out of memory under load, if pressure was high just before",
            "a crash: the end of the old log says",
        ),
        actions=(
            Action("read the last lines of the log before the restart"),
            Action("out of GPU memory at run time: leave it more room", "--gpu-memory-utilization"),
            Action("or make its steps smaller", "--max-num-batched-tokens"),
        ),
        origin="tuning guide part 12B; process_start_time_seconds, or several counters falling at once",
    ),
    Symptom(
        id="signals_missing",
        title="vLLM answers, but what kvwatch needs is not there",
        severity=Severity.WARNING,
        scope=Scope.TARGET,
        for_s=30,
        keep_s=0,
        judge=_signals_missing,
        meaning="Without usage, running and waiting nothing can be told about the cache; this is not 'all is well'.",
        causes=(
            "statistics are switched off",
            "a release or a relay exposes other names (see unknown_families)",
            "the address is not vLLM's /metrics",
        ),
        actions=(
            Action("start the server without it", "--disable-log-stats"),
            Action("tell kvwatch the spelling (KVWATCH_SPELLINGS) or a new name (KVWATCH_ALIASES)"),
            Action("Ray: the deployment needs log_engine_metrics=True"),
        ),
        origin="vllm-project/vllm #8612, #27341; ray-project/ray #59071",
    ),
)

BY_ID: Mapping[str, Symptom] = {row.id: row for row in SYMPTOMS}

#: Every threshold there is, for settings, help and `--threshold`.
THRESHOLDS: tuple[Threshold, ...] = (
    *REGIME_THRESHOLDS,
    *DERIVED_THRESHOLDS,
    *(
        Threshold(f"{row.id}.{what}", value, "seconds", text, high=86_400)
        for row in SYMPTOMS
        for what, value, text in (
            ("for", row.for_s, f"How long {row.id} must hold before it fires."),
            ("keep", row.keep_s, f"How long {row.id} must be clear before it is over."),
        )
    ),
    *(threshold for row in SYMPTOMS for threshold in row.thresholds),
)


def limits_of(overrides: Mapping[str, float]) -> Limits:
    """The thresholds in force; ValueError lists everything that is wrong with `overrides`."""
    return Limits(THRESHOLDS, overrides)
