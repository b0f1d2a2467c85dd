"""Lines of text for the terminal: times, numbers of the evidence, transitions, events, time per regime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvwatch.core.judgement.state import EngineState, Event, State
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.text.evidence import (
    evidence_rows,
    evidence_title,
    format_evidence,
    format_value,
    split_thresholds,
)
from kvwatch.text.numbers import format_number
from kvwatch.text.redact import escape

_MIN_SHARE = 0.005
"""Regimes with a smaller share of the time are left out."""


def clock(seconds: float) -> str:
    """A time since the start: ``1:05`` or ``2:01:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def evidence(found: Mapping[str, Any], limit: int = 4) -> str:
    """At most `limit` known numbers of the evidence in one line, those with a threshold first."""
    known = [
        (title, judged[1], threshold)
        for title, judged, threshold in evidence_rows(found)
        if judged is not None and judged[1] is not None and title != "window_seconds"
    ]
    known.sort(key=lambda one: one[2] is None)
    numbers = (
        f"{evidence_title(title)} {format_value(title, value)}"
        + (f" (threshold {format_value(title, threshold[1])})" if threshold else "")
        for title, value, threshold in known[:limit]
    )
    return escape("; ".join(numbers), keep="")


def place(parts: Iterable[str], separator: str = "/") -> str:
    """Target, model and engine in one line. Servers choose these names, so control characters are escaped."""
    return escape(separator.join(part for part in parts if part), keep="")


def transition(change: Mapping[str, Any]) -> str:
    """A line for a transition, from `report.transition`: time, engine, symptom, states, evidence or reason."""
    key = EngineKey(change["target"], change.get("model_name", ""), change.get("engine", ""))
    why = change.get("reason", "") if change["to"] == "unknown" else evidence(change["evidence"])
    states = f"{change['from']} -> {change['to']}"
    return f"{clock(change['t']):>8}  {place(key)}  {change['symptom']}  {states}  {why}".rstrip()


def event(found: Event, start: float) -> str:
    """A line for an event; `start` is the monotonic time of the first scrape."""
    known, _ = split_thresholds({name: value for name, value in found.detail.items() if value is not None})
    detail = escape(", ".join(format_evidence(name, value) for name, value in known.items()), keep="")
    return (
        f"{clock(found.t - start):>8}  {place(found.key)}  {found.kind.replace('_', ' ')}  {detail}".rstrip()
    )


def scrape_counts(count: int, seconds: float, failures: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in failures.items())
    return f"{count} scrapes over {clock(seconds)}, " + (f"failed: {kinds}" if kinds else "none failed")


def regime_shares(regimes: Mapping[str, float]) -> str:
    """Seconds per regime as shares, longest first."""
    total = sum(regimes.values())
    if not total:
        return "watched too short"
    return ", ".join(
        f"{name} {percent(regimes[name] / total)} ({clock(regimes[name])})" for name in main_regimes(regimes)
    )


def main_regimes(regimes: Mapping[str, float]) -> list[str]:
    """The regimes with at least 0.5 % of the time, longest first."""
    least = _MIN_SHARE * sum(regimes.values())
    return sorted((name for name, s in regimes.items() if s >= least), key=lambda name: -regimes[name])


def key_numbers(state: State) -> str:
    """The key numbers of a target for a progress bar, without the unknown ones; the failure if it is down.

    Requests and tokens are sums over the engines. KV cache usage is that of the fullest engine.
    """
    if not state.up:
        return str(state.failure or "")
    engines = list(state.engines.values())
    usage = _over_engines(max, engines, lambda one: one.snapshot.number("kv_cache_usage_ratio"))
    parts = (
        ("running", _over_engines(sum, engines, lambda one: one.snapshot.number("requests_running")), ""),
        ("waiting", _over_engines(sum, engines, lambda one: one.snapshot.number("requests_waiting")), ""),
        ("KV", None if usage is None else 100 * usage, " %"),
        (
            "",
            _over_engines(sum, engines, lambda e: e.derived.get("generation_tokens_per_second")),
            " tokens/s",
        ),
    )
    return ", ".join(
        f"{name} {format_number(round(value))}{unit}".lstrip()
        for name, value, unit in parts
        if value is not None
    )


def _over_engines(
    aggregate: Callable[[list[float]], float],
    engines: list[EngineState],
    number: Callable[[EngineState], float | None],
) -> float | None:
    """One number over all engines; None if it is unknown for one of them."""
    found = [value for one in engines if (value := number(one)) is not None]
    return aggregate(found) if found and len(found) == len(engines) else None
