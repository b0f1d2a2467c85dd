"""The lines of statistics that vLLM prints every few seconds, in every wording since v0, as readings of its engines.

What a line says is not what a scrape says: throughput is a mean over the time since the line before, usage has one
decimal, and much is left out. A counter here is the sum of the throughputs, begun at an arbitrary number where the
start is not in the log. What no line says is missing, never zero:

- v1 prints preemptions only where there were some, and 0.32 resets the count before it prints it: it is known from
  the first line on that shows one;
- v0 prints every fiftieth preemption with its number, which is a lower bound, between its lines;
- the hit rate is over the last thousand requests (v1) or since the start (v0), which is no counter.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from kvwatch.core.model.outcome import LogReport
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.core.model.snapshot import FROM_LOG, CacheConfig, EngineKey, Snapshot, Value
from kvwatch.logs.lines import LogLine

MOST = 8640
"""Lines of one engine that are kept, a day of them; of a longer log the newest."""
SPACING_S = 10.0
"""Between two lines of which the log does not say the time."""
_FAR_S = 30.0
"""Lines further apart have a gap between them: v1 prints none while it is idle."""
_DAY_S = 86_400.0

_COUNT, _AMOUNT = r"\d{1,15}+", r"\d{1,15}+(?:\.\d{1,15}+)?+"
"""Numbers as vLLM writes them; what is longer is none of its."""
_LINE = re.compile(
    r"(?:Engine (?P<engine>\d{1,6}): |(?<!\d)(?P<many>\d{1,6}) Engines Aggregated: )?"
    rf"Avg prompt throughput: (?P<prompt>{_AMOUNT})"
)
_BARE = re.compile(
    rf"Running: (?P<running>{_COUNT}) reqs, (?:Swapped: {_COUNT} reqs, )?"
    rf"(?:Waiting|Pending): (?P<waiting>{_COUNT}) reqs"
)
_PARTS: Mapping[str, re.Pattern[str]] = {
    "generation": re.compile(rf"Avg generation throughput: ({_AMOUNT}) tokens/s"),
    "running": re.compile(rf"Running: ({_COUNT}) reqs"),
    "waiting": re.compile(rf"(?:Waiting|Pending): ({_COUNT}) reqs"),
    "swapped": re.compile(rf"Swapped: ({_COUNT}) reqs"),
    "deferred": re.compile(rf"Deferred: ({_COUNT}) reqs"),
    "preempted": re.compile(rf"Preemptions: ({_COUNT})(?!\d)"),
    "usage": re.compile(rf"\w KV cache usage: ({_AMOUNT})%"),
    "cpu_usage": re.compile(rf"GPU KV cache usage: {_AMOUNT}%, CPU KV cache usage: ({_AMOUNT})%"),
    "hit_rate": re.compile(rf"(?<!External )Prefix cache hit rate: (?:GPU: )?({_AMOUNT})%"),
}
_V0_RATE = re.compile(rf"Prefix cache hit rate: GPU: ({_AMOUNT})%")
_V0_PREEMPTED = re.compile(rf"total_(?:num_cumulative_preemption|cumulative_preemption_cnt)=({_COUNT})(?!\d)")
_ABORTED = re.compile(r"Aborted request |Request \S+ aborted")
WORDS = (
    "Avg prompt throughput:",
    "Running: ",
    "Prefix cache hit rate:",
    "cumulative_preemption",
    "borted",
)

#: The signal by part of a line; the values are per cent or requests.
_GAUGES: tuple[tuple[str, str, float], ...] = (
    ("usage", "kv_cache_usage_ratio", 0.01),
    ("running", "requests_running", 1.0),
    ("waiting", "requests_waiting", 1.0),
    ("swapped", "requests_swapped", 1.0),
    ("cpu_usage", "cpu_kv_cache_usage_ratio", 0.01),
)
_UNSAID = "the line does not say it"
_NO_COUNTER = "a log's lines do not count it"


class StatisticsLine(NamedTuple):
    """One line. Throughput in tokens a second, `usage` and `hit_rate` in per cent; None is "not said"."""

    number: int
    t: float | None
    engine: str
    engines: int
    """How many engines the line is about: more than one hide a hot one among them."""
    prompt: float | None
    parts: Mapping[str, float]
    cumulative_preemptions: float | None
    aborts: int
    """Requests that clients gave up since the line before, as far as the log tells."""


class Statistics:
    """Collects the lines of one start."""

    def __init__(self, kept: int = MOST) -> None:
        self.readings: deque[StatisticsLine] = deque(maxlen=kept)
        self.seen = 0
        self._preempted: float | None = None
        self._aborts = 0
        self._clock = _Clock()

    def take(self, line: LogLine) -> bool:
        """Takes a line; whether it is one of statistics."""
        text = line.text
        if found := _V0_PREEMPTED.search(text):
            self._preempted = max(self._preempted or 0.0, float(found[1]))
            self._count_at_once(self._clock.at(line.when))
        elif _ABORTED.search(text):
            self._aborts += 1
        elif (found := _V0_RATE.search(text)) and self.readings:
            last = self.readings[-1]
            self.readings[-1] = last._replace(parts={**last.parts, "hit_rate": float(found[1])})
        if line.level not in {"INFO", "DEBUG", ""}:
            return False
        found = _LINE.search(text) or (_BARE.search(text) if not line.level else None)
        if found is None:
            return False
        groups = found.groupdict()
        parts = {name: float(m[1]) for name, pattern in _PARTS.items() if (m := pattern.search(text))}
        reading = StatisticsLine(
            line.number,
            self._clock.at(line.when),
            "all" if groups.get("many") else str(int(groups.get("engine") or 0)),
            int(groups.get("many") or 1),
            float(groups["prompt"]) if groups.get("prompt") else None,
            parts,
            self._preempted,
            self._aborts,
        )
        self.readings.append(reading)
        self.seen += 1
        self._aborts = 0
        return True

    def _count_at_once(self, t: float | None) -> None:
        """Lets the newest line have the count: what it shows is what requests were preempted in. The next may come
        when all is over."""
        last = self.readings[-1] if self.readings else None
        if last is not None and (t is None or last.t is None or t - last.t <= SPACING_S):
            self.readings[-1] = last._replace(cumulative_preemptions=self._preempted)


class _Clock:
    """Times of a log, in seconds; it says no year."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._years = 0.0

    def at(self, when: str) -> float | None:
        if not when:
            return None
        try:
            t = datetime.strptime(f"2024-{when} +0000", "%Y-%m-%d %H:%M:%S %z").timestamp()
        except ValueError:
            return None
        if self._last is not None and t + self._years < self._last - 300 * _DAY_S:
            self._years += 366 * _DAY_S
        self._last = t + self._years
        return self._last


# -- readings to snapshots -------------------------------------------------------------------------------------------


class Counters:
    """The running sums of one engine, and the time of its newest line."""

    def __init__(self, base: float) -> None:
        self.prompt = self.generation = base
        self.preempted: float | None = None
        self.t: float | None = None
        self.newest: StatisticsLine | None = None
        self.frozen = ""
        """Why the gauges of the newest line can't be believed; empty if they can."""

    def add(self, reading: StatisticsLine, t: float) -> None:
        """Counts what was done since the line before."""
        passed = SPACING_S if self.t is None or not 0 < t - self.t <= _FAR_S else t - self.t
        self.prompt += (reading.prompt or 0.0) * passed
        self.generation += reading.parts.get("generation", 0.0) * passed
        if "preempted" in reading.parts:
            self.preempted = (self.preempted or 0.0) + reading.parts["preempted"]
        elif reading.cumulative_preemptions is not None:
            self.preempted = max(self.preempted or 0.0, reading.cumulative_preemptions)
        self.t = t
        self.frozen = _frozen(self.newest, reading, self.frozen)
        self.newest = reading


def logged(
    engines: Mapping[EngineKey, tuple[StatisticsLine, Counters]],
    config: CacheConfig,
    features: frozenset[str],
    *,
    wall: float,
    longest: float | None,
) -> LogReport:
    """What the engines' newest lines say, for `advance`; `longest` is the longest request that the server takes."""
    snapshots = {key: _snapshot(key, *told, config, features) for key, told in engines.items()}
    facts = ServerInfo(max_model_len={key.model_name: int(longest) for key in engines}) if longest else None
    return LogReport(snapshots, wall=wall, interval_s=SPACING_S, facts=facts)


def _snapshot(
    key: EngineKey, reading: StatisticsLine, counters: Counters, config: CacheConfig, features: frozenset[str]
) -> Snapshot:
    values: dict[str, Value] = {}
    missing = dict.fromkeys(_ABSENT, _NO_COUNTER)
    frozen = counters.frozen
    for part, signal, scale in _GAUGES:
        if part in reading.parts and not frozen:
            values[signal] = min(reading.parts[part] * scale, 1.0) if scale < 1 else reading.parts[part]
        else:
            missing[signal] = frozen or _UNSAID
    if "deferred" in reading.parts and "waiting" in reading.parts:
        deferred = reading.parts["deferred"]
        values["requests_waiting_by_reason"] = {
            "deferred": deferred, "capacity": max(reading.parts["waiting"] - deferred, 0.0)
        }  # fmt: skip
    for signal, value in (
        ("prompt_tokens_total", None if reading.prompt is None else counters.prompt),
        ("generation_tokens_total", counters.generation if "generation" in reading.parts else None),
        ("preemptions_total", counters.preempted),
    ):
        if value is None:
            missing[signal] = _NO_COUNTER if signal == "preemptions_total" else _UNSAID
        else:
            values[signal] = value
    v0 = "swapped" in reading.parts
    if v0 and "hit_rate" in reading.parts:
        values["prefix_cache_lifetime_hit_ratio"] = min(reading.parts["hit_rate"] / 100, 1.0)
    return Snapshot(key, values, missing, {}, config, "v0" if v0 else "v1", features | {FROM_LOG})


def _frozen(before: StatisticsLine | None, newest: StatisticsLine, already: str) -> str:
    """Why the gauges of the newest line can't be believed; empty if they can.

    Before 0.10.2 they keep their last values when clients give up all that is left (as `core` tells from the answers
    that the server gave): nothing moves, they stand as before, and requests were given up since the line before that.
    """
    still = not newest.prompt and not newest.parts.get("generation")
    if before is None or not still:
        return ""
    same = all(newest.parts.get(name) == before.parts.get(name) for name in ("running", "waiting", "usage"))
    if same and (already or newest.aborts or before.aborts):
        return "clients gave up requests, and the line repeats what the one before said"
    return ""


#: Signals that judges ask for and no line has.
_ABSENT = (
    "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total", "requests_finished_total",
    "request_prompt_tokens", "request_generation_tokens", "time_to_first_token_seconds", "iteration_tokens",
    "inter_token_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "e2e_request_latency_seconds", "request_decode_time_seconds", "prompt_tokens_by_source_total",
)  # fmt: skip
