"""Turns the statistics lines that vLLM prints every few seconds, in every wording since v0, into snapshots.

A line has less than a scrape. Throughput is the mean since the line before, usage has one decimal, much is missing.
Counters here are sums of throughputs; if the log lacks the start, they begin at an arbitrary number. What no line
has is missing, never zero:

- v1 prints preemptions only if there were some, and 0.32 resets the count before printing it: the count is known
  from the first line on that has one.
- v0 prints every fiftieth preemption with its number, between the statistics lines: a lower bound.
- The hit rate covers the last thousand requests (v1) or the time since the start (v0): it is no counter.
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

MAX_LINES = 8640
"""The newest lines of one engine that are kept: one day of them."""
SPACING_S = 10.0
"""The assumed time between two lines without a time."""
_GAP_S = 30.0
"""Lines further apart have a gap between them: v1 prints none while it is idle."""
_DAY_S = 86_400.0

_COUNT, _AMOUNT = r"\d{1,15}+", r"\d{1,15}+(?:\.\d{1,15}+)?+"
"""Numbers as vLLM writes them."""
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

_GAUGES: tuple[tuple[str, str, float], ...] = (
    ("usage", "kv_cache_usage_ratio", 0.01),
    ("running", "requests_running", 1.0),
    ("waiting", "requests_waiting", 1.0),
    ("swapped", "requests_swapped", 1.0),
    ("cpu_usage", "cpu_kv_cache_usage_ratio", 0.01),
)
"""Part of a line, signal, and scale: per cent become ratios."""
_NOT_IN_LINE = "the line does not show it"
_NO_COUNTER = "statistics lines do not count it"


class StatisticsLine(NamedTuple):
    """One line. None is "not in the line"."""

    number: int
    t: float | None
    engine: str
    engines: int
    """Engines that the line covers: the mean of several hides a full one."""
    prompt: float | None
    """Prompt tokens per second."""
    parts: Mapping[str, float]
    """The other numbers: tokens per second, requests, per cent."""
    cumulative_preemptions: float | None
    aborts: int
    """Requests aborted by clients since the line before, as far as the log shows."""

    @property
    def is_moving(self) -> bool:
        """Whether any tokens were computed."""
        return bool(self.prompt or self.parts.get("generation"))

    @property
    def has_requests(self) -> bool:
        return bool(self.parts.get("running") or self.parts.get("waiting"))


class Statistics:
    """The statistics lines of one start."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self.lines: deque[StatisticsLine] = deque(maxlen=max_lines)
        self.seen = 0
        self._preempted: float | None = None
        self._aborts = 0
        self._clock = _Clock()

    @property
    def newest(self) -> StatisticsLine | None:
        return self.lines[-1] if self.lines else None

    def add(self, line: LogLine) -> bool:
        """Adds a line; returns whether it is a statistics line."""
        text = line.text
        if found := _V0_PREEMPTED.search(text):
            self._preempted = max(self._preempted or 0.0, float(found[1]))
            self._add_preemptions_to_newest(self._clock.at(line.when))
        elif _ABORTED.search(text):
            self._aborts += 1
        elif (found := _V0_RATE.search(text)) and self.lines:
            last = self.lines[-1]
            self.lines[-1] = last._replace(parts={**last.parts, "hit_rate": float(found[1])})
        if line.level not in {"INFO", "DEBUG", ""}:
            return False
        found = _LINE.search(text) or (_BARE.search(text) if not line.level else None)
        if found is None:
            return False
        groups = found.groupdict()
        parts = {name: float(m[1]) for name, pattern in _PARTS.items() if (m := pattern.search(text))}
        self.lines.append(
            StatisticsLine(
                line.number,
                self._clock.at(line.when),
                "all" if groups.get("many") else str(int(groups.get("engine") or 0)),
                int(groups.get("many") or 1),
                float(groups["prompt"]) if groups.get("prompt") else None,
                parts,
                self._preempted,
                self._aborts,
            )
        )
        self.seen += 1
        self._aborts = 0
        return True

    def _add_preemptions_to_newest(self, t: float | None) -> None:
        """The newest line shows the load that was preempted; the next may come after it."""
        last = self.newest
        if last is not None and (t is None or last.t is None or t - last.t <= SPACING_S):
            self.lines[-1] = last._replace(cumulative_preemptions=self._preempted)


class _Clock:
    """Times of a log, in seconds. A log has no year."""

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


# -- lines to snapshots ----------------------------------------------------------------------------------------------


class Counters:
    """The running sums of one engine, with its newest line."""

    def __init__(self, base: float) -> None:
        self.prompt = self.generation = base
        self.preempted: float | None = None
        self.t: float | None = None
        self.newest: StatisticsLine | None = None
        self.frozen = ""
        """Why the gauges of the newest line are stale; empty if they are not."""

    def add(self, line: StatisticsLine, t: float) -> None:
        """Adds what was done since the line before."""
        passed = SPACING_S if self.t is None or not 0 < t - self.t <= _GAP_S else t - self.t
        self.prompt += (line.prompt or 0.0) * passed
        self.generation += line.parts.get("generation", 0.0) * passed
        if "preempted" in line.parts:
            self.preempted = (self.preempted or 0.0) + line.parts["preempted"]
        elif line.cumulative_preemptions is not None:
            self.preempted = max(self.preempted or 0.0, line.cumulative_preemptions)
        self.t = t
        self.frozen = _frozen(self.newest, line, self.frozen)
        self.newest = line


def report_of_lines(
    engines: Mapping[EngineKey, tuple[StatisticsLine, Counters]],
    config: CacheConfig,
    features: frozenset[str],
    *,
    wall: float,
    max_model_len: float | None,
) -> LogReport:
    """The newest line of each engine, for `advance`."""
    snapshots = {key: _snapshot(key, *newest, config, features) for key, newest in engines.items()}
    facts = (
        ServerInfo(max_model_len={key.model_name: int(max_model_len) for key in engines})
        if max_model_len
        else None
    )
    return LogReport(snapshots, wall=wall, interval_s=SPACING_S, facts=facts)


def _snapshot(
    key: EngineKey, line: StatisticsLine, counters: Counters, config: CacheConfig, features: frozenset[str]
) -> Snapshot:
    values: dict[str, Value] = {}
    missing = dict.fromkeys(_ABSENT, _NO_COUNTER)
    frozen = counters.frozen
    for part, signal, scale in _GAUGES:
        if part in line.parts and not frozen:
            values[signal] = min(line.parts[part] * scale, 1.0) if scale < 1 else line.parts[part]
        else:
            missing[signal] = frozen or _NOT_IN_LINE
    if "deferred" in line.parts and "waiting" in line.parts:
        deferred = line.parts["deferred"]
        values["requests_waiting_by_reason"] = {
            "deferred": deferred, "capacity": max(line.parts["waiting"] - deferred, 0.0)
        }  # fmt: skip
    for signal, value in (
        ("prompt_tokens_total", None if line.prompt is None else counters.prompt),
        ("generation_tokens_total", counters.generation if "generation" in line.parts else None),
        ("preemptions_total", counters.preempted),
    ):
        if value is None:
            missing[signal] = _NO_COUNTER if signal == "preemptions_total" else _NOT_IN_LINE
        else:
            values[signal] = value
    v0 = "swapped" in line.parts
    if v0 and "hit_rate" in line.parts:
        values["prefix_cache_lifetime_hit_ratio"] = min(line.parts["hit_rate"] / 100, 1.0)
    return Snapshot(key, values, missing, {}, config, "v0" if v0 else "v1", features | {FROM_LOG})


def _frozen(before: StatisticsLine | None, newest: StatisticsLine, already: str) -> str:
    """Why the gauges of the newest line are stale; empty if they are not.

    Before 0.10.2, gauges keep their last values after clients abort all remaining requests: nothing moves, the gauges
    stay the same, and requests were aborted. (For live metrics, `core` sees this in the count of finished requests.)
    """
    if before is None or newest.is_moving:
        return ""
    same = all(newest.parts.get(name) == before.parts.get(name) for name in ("running", "waiting", "usage"))
    if same and (already or newest.aborts or before.aborts):
        return "clients aborted requests, and the line repeats the one before"
    return ""


_ABSENT = (
    "prefix_cache_queried_tokens_total", "prefix_cache_hit_tokens_total", "requests_finished_total",
    "request_prompt_tokens", "request_generation_tokens", "time_to_first_token_seconds", "iteration_tokens",
    "inter_token_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "e2e_request_latency_seconds", "request_decode_time_seconds", "prompt_tokens_by_source_total",
)  # fmt: skip
"""Signals that symptoms use and no line has."""
