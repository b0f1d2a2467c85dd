"""Symptoms of first tokens that come late, where nothing else accounts for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from kvwatch.core.derive import FIVE_MINUTES, MINUTE
from kvwatch.core.percentiles import LATENCIES, labelled
from kvwatch.core.regimes import Regime
from kvwatch.core.snapshot import Histogram
from kvwatch.core.symptoms.actions import ENABLE_PREFIX_CACHING, SHARE, SHORTER
from kvwatch.core.symptoms.model import Action, EngineView, Judgement, Scope, Severity, Symptom
from kvwatch.core.symptoms.tools import (
    clear,
    judged,
    lacks,
    long_past,
    once,
    regime_seconds,
    unknown,
    windowed_mean,
)
from kvwatch.core.thresholds import Threshold
from kvwatch.core.window import above, ladder_increase

_TTFT, _ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
_QUEUE, _PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"
_TTFT_P95 = labelled(LATENCIES[_TTFT], 0.95)
_ITL_P95 = labelled(LATENCIES[_ITL], 0.95)
#: Regimes in which requests wait, for whatever: what then delays a first token has a symptom of its own.
_WAITING = (
    Regime.KV_LIMITED,
    Regime.SEQUENCE_LIMITED,
    Regime.PREFILL_LIMITED,
    Regime.DEFERRED,
    Regime.STALLED,
)
#: Minutes of history before a rise can be told from what is usual.
_USUAL_TAKES = 10
#: Seconds of a minute in which requests wait, and in which none does, for the minute to have some of both.
_SOME = 2.0


@once
def _parts(view: EngineView) -> Mapping[str, Any]:
    """How the time to the first token of finished requests is made up."""
    queue, _ = windowed_mean(view, _QUEUE)
    prefill, _ = windowed_mean(view, _PREFILL)
    both = (queue or 0.0) + (prefill or 0.0)
    share = None if queue is None or prefill is None or both <= 0 else prefill / both
    larger = None if share is None else "prefill" if share >= 0.5 else "queue"
    return {
        "mean_queue_seconds": queue,
        "mean_prefill_seconds": prefill,
        "prefill_share_ratio": share,
        "larger_part": larger,
    }


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


@once
def _since_start(view: EngineView) -> list[_Served]:
    """What was served since the server started, at each full page of the last five minutes, the newest last."""
    newest = view.lifetime.get(_TTFT)
    rows = view.windows.ladders.since(view.now - FIVE_MINUTES)
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


def _may_be_cold(view: EngineView) -> bool:
    """Whether it is a cold start, or too early to say that it is none."""
    first = _late_from_the_first(_since_start(view))
    early = first is not None and _young(view, first.all) and view.now - first.t <= MINUTE
    return early or "cold_start" in view.firing


def _cold_start(view: EngineView) -> Judgement:
    if reason := lacks(view, _TTFT):
        return unknown(reason)
    limits = view.limits
    seen = _since_start(view)
    now = seen[-1] if seen else _Served(view.now, 0.0, 0.0, 0.0)
    waited = regime_seconds(view, FIVE_MINUTES, *_WAITING)
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
    return judged(in_time and _young(view, first.all), evidence)


def _comes_and_goes(view: EngineView) -> bool:
    """Whether requests wait again and again: in at least `ttft_high.minutes` of the last five some of the time."""
    watched, waited = [0.0] * 5, [0.0] * 5
    for row, seconds in view.held(FIVE_MINUTES):
        minute = min(int((view.now - row.t) // MINUTE), 4)
        watched[minute] += seconds
        waited[minute] += seconds * (row.regime in _WAITING)
    some = sum(_SOME <= part <= all_of - _SOME for part, all_of in zip(waited, watched, strict=True))
    return some >= view.limits["ttft_high.minutes"]


def _ttft_high(view: EngineView) -> Judgement:
    if reason := lacks(view, _TTFT):
        return unknown(reason)
    limits = view.limits
    p95, itl = view.derived.get(_TTFT_P95), view.derived.get(_ITL_P95)
    before = [row.ttft_p95 for row in long_past(view) if row.ttft_p95 is not None]
    usual = median(before) if len(before) >= _USUAL_TAKES else None
    waited, now = (regime_seconds(view, window, *_WAITING) for window in (FIVE_MINUTES, MINUTE))
    cold = _may_be_cold(view)
    seen = ladder_increase(view.windows.ladders.since(view.now - FIVE_MINUTES), _TTFT)
    late = above(seen, limits["ttft_high.seconds"]) if seen else 0.0
    served = seen.count if seen else 0.0
    evidence = {
        "first_tokens": served,
        "late_first_tokens": late,
        _TTFT_P95: p95,
        "usual_seconds": usual,
        _ITL_P95: itl,
        **_parts(view),
        "waiting_seconds": waited,
        "window_seconds": FIVE_MINUTES,
        "threshold_seconds": limits["ttft_high.seconds"],
        "threshold_late_first_tokens": limits["ttft_high.late"],
        "threshold_first_tokens_of_a_rise": limits["ttft_high.requests"],
        "threshold_times_usual": limits["ttft_high.times"],
        "threshold_inter_token_seconds": limits["ttft_high.inter_token"],
    }
    if p95 is None or cold or (itl is not None and itl > limits["ttft_high.inter_token"]):
        return clear(**evidence)
    if waited > limits["ttft_high.waited"] and now <= 0.5 * MINUTE and not _comes_and_goes(view):
        return clear(**evidence)  # late because requests waited, and that is over
    risen = usual is not None and p95 >= max(limits["ttft_high.times"] * usual, limits["ttft_high.rise_from"])
    many = served >= limits["ttft_high.requests"]
    high = p95 >= limits["ttft_high.seconds"] and late >= limits["ttft_high.late"]
    return judged(high or (risen and many), evidence)


def _shared_prefix_slow(view: EngineView) -> Judgement:
    if reason := lacks(view, _TTFT, _QUEUE, _PREFILL, "request_prompt_tokens"):
        return unknown(reason)
    limits, config = view.limits, view.snapshot.config
    name = labelled("request_prompt_tokens_percentile", 0.5)
    prompts, p95 = view.derived.get(name), view.derived.get(_TTFT_P95)
    ratio, off = view.derived.get("prefix_cache_hit_ratio"), config.enable_prefix_caching is False
    parts = _parts(view)
    evidence = {
        name: prompts,
        _TTFT_P95: p95,
        **parts,
        "prefix_cache_hit_ratio": ratio,
        "prefix_caching": "off" if off else "on",
        "threshold_prompt_tokens": limits["shared_prefix_slow.prompt_tokens"],
        "threshold_seconds": limits["shared_prefix_slow.seconds"],
        "threshold_hit_ratio": limits["shared_prefix_slow.hit_ratio"],
    }
    long = prompts is not None and prompts >= limits["shared_prefix_slow.prompt_tokens"]
    late = p95 is not None and p95 >= limits["shared_prefix_slow.seconds"]
    if not long or not late or parts["larger_part"] != "prefill" or _may_be_cold(view):
        return clear(**evidence)
    if off:
        return judged(True, evidence)
    if ratio is None:
        return unknown(view.derived.unknown.get("prefix_cache_hit_ratio", "the hit ratio is unknown"))
    if "prefix_cache_hit_ratio" in view.derived.untrusted:
        return unknown(view.derived.untrusted["prefix_cache_hit_ratio"])
    return judged(ratio < limits["shared_prefix_slow.hit_ratio"], evidence)


ROWS: tuple[Symptom, ...] = (
    Symptom(
        id="ttft_high",
        title="First tokens come late",
        when="95th percentile of time to first token over 5 min ≥ {seconds} (≥ {late} late ones), or ≥ {times} ×"
        " what it usually was within the hour and ≥ {rise_from}; inter-token latency ≤ {inter_token}; not"
        " in a cold start, nor left over from a queue that has gone",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=15,
        keep_s=30,
        judge=_ttft_high,
        thresholds=(
            Threshold("ttft_high.seconds", 2, "seconds", "95th percentile over 5 min, at least."),
            Threshold(
                "ttft_high.times",
                3,
                "ratio",
                "Or so many times what that percentile usually was within the hour (median).",
                low=1,
                high=1000,
            ),
            Threshold(
                "ttft_high.late", 4, "requests", "Late first tokens in 5 min, at least: a few are no alarm."
            ),
            Threshold("ttft_high.rise_from", 0.5, "seconds", "A rise counts from here."),
            Threshold(
                "ttft_high.requests",
                100,
                "requests",
                "A rise counts with so many first tokens in 5 min, at least: among fewer, one long prompt makes it.",
            ),
            Threshold(
                "ttft_high.inter_token",
                0.2,
                "seconds",
                "Only while the 95th percentile of inter-token latency is at most this: else all steps are slow.",
            ),
            Threshold(
                "ttft_high.waited",
                15,
                "seconds",
                "After more than this of the 5 min in a queue that has gone, what was late is put down to it.",
            ),
            Threshold(
                "ttft_high.minutes",
                3,
                "minutes",
                "But not where queues come and go: where so many of those five minutes have some of one.",
                low=1,
                high=5,
            ),
        ),
        meaning="Once an answer has begun it comes at a normal pace, but it begins late. The evidence says whether"
        " queue or prefill is the larger part. Requests whose clients gave up are not counted.",
        causes=(
            "long prompts, computed whole (larger part: prefill)",
            "bursts too short for a queue to show at each scrape (larger part: queue)",
            "something before vLLM's engine: tokenising, images, a busy event loop (neither part is large)",
        ),
        actions=(
            SHORTER,
            SHARE,
            ENABLE_PREFIX_CACHING,
            Action(
                "if prefill is the larger part and inter-token latency may rise: raise --max-num-batched-tokens",
                "--max-num-batched-tokens",
            ),
            Action("if the queue is the larger part: smooth the bursts, or add a replica"),
        ),
        origin="2 s and 0.2 s as in ChrisAdkin8/k8s-ai-observability and vllm-doctor; the part that is larger as in"
        " vLLM's own split of request times",
    ),
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
    Symptom(
        id="shared_prefix_slow",
        title="Long prompts are computed whole, and first tokens wait for it",
        when="median prompt ≥ {prompt_tokens} tokens, 95th percentile of time to first token ≥"
        " {seconds}, prefill the larger part, hit ratio < {hit_ratio} or caching off",
        severity=Severity.WARNING,
        scope=Scope.ENGINE,
        for_s=30,
        keep_s=60,
        judge=_shared_prefix_slow,
        thresholds=(
            Threshold(
                "shared_prefix_slow.prompt_tokens", 1000, "tokens", "Median prompt over 1 h, at least."
            ),
            Threshold(
                "shared_prefix_slow.seconds",
                2,
                "seconds",
                "95th percentile of time to first token, at least.",
            ),
            Threshold("shared_prefix_slow.hit_ratio", 0.2, "ratio", "Prefix hit ratio below this.", high=1),
        ),
        meaning="Prefill is the larger part of the time to the first token, prompts are long, and next to nothing of"
        " them is found in the prefix cache, or caching is off. Where prompts begin alike, that is needless work.",
        causes=(
            "ids, times or names at the head of the template: one different token there ruins the rest",
            "prefix caching is off",
            "prompts really have nothing in common: then only shorter ones or more prefill help",
        ),
        actions=(
            SHORTER,
            Action(
                "make system prompt and tool schema identical, token by token, and put variable values behind them"
            ),
            ENABLE_PREFIX_CACHING,
            Action("order retrieved documents the same way each time, the most common first"),
        ),
        explains=("ttft_high", "prefix_cache_ineffective", "prefix_cache_off"),
        origin="vLLM's documentation of automatic prefix caching: it saves prefill, and only of equal beginnings",
    ),
)
