"""The verdict of `check`: findings, pending, fine or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvwatch.commands.terminal_text import clock, percent
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.export.findings import lifecycles
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import EngineKey

_PENDING_WHILE_DOWN = frozenset({"target_down", "startup_kv_failure", "signals_missing"})
"""These are pending while a server does not answer, or not as a vLLM. The verdict is then unknown."""
MIN_WATCHED_S = 10.0
"""A shorter watch gives no verdict: one request may last longer."""
_HALF = 0.5
_MIN_SHARE = 0.05
"""Regimes with a smaller share of the time are left out of the text."""
_MARGIN_S = 30.0
"""How much longer to watch than a symptom needs."""
_DELAYS: Mapping[Regime, tuple[str, tuple[str, ...]]] = {
    Regime.KV_LIMITED: (
        "waited for the KV cache",
        ("kv_exhausted", "kv_thrashing", "long_request_hogs_cache"),
    ),
    Regime.SEQUENCE_LIMITED: ("waited for a slot in the batch", ("sequence_limited",)),
    Regime.PREFILL_LIMITED: ("waited for prefill", ("prefill_limited",)),
    Regime.DEFERRED: ("waited for a LoRA slot, a KV transfer or a grammar", ("requests_deferred",)),
    Regime.STALLED: ("stalled", ("engine_stalled",)),
}
"""Regimes that delay requests: what the requests did, and the symptoms that report it, the most direct first."""


@dataclass(frozen=True, slots=True)
class Limited:
    """An engine that delayed requests for more than half of the time, without a finding that reports it.

    `seconds` of `watched_s` were in `regime`, the longest of the regimes that delay requests. `symptom` reports that
    regime and fires after `needs_s` of a minute. `watch_for_s` is how long to watch for that; None if it was watched
    that long.
    """

    key: EngineKey
    regime: Regime
    seconds: float
    watched_s: float
    symptom: str
    needs_s: float | None
    watch_for_s: float | None
    text: str

    def as_data(self) -> dict[str, Any]:
        return report.identity(self.key) | {
            "regime": str(self.regime),
            "seconds": round(self.seconds, 3),
            "watched_seconds": round(self.watched_s, 3),
            "share": round(self.seconds / self.watched_s, 4),
            "symptom": self.symptom,
            "needs_seconds": self.needs_s,
            "window_seconds": MINUTE,
            "watch_for_seconds": self.watch_for_s,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict. `word` is fine, findings, pending or unknown; `code` is the exit code."""

    word: str
    why: str
    limited: tuple[Limited, ...] = ()

    @property
    def code(self) -> int:
        return {"fine": 0, "findings": 1, "pending": 1, "unknown": 2}[self.word]


def conclude(watch: Watch) -> Conclusion:
    """The verdict at the end of a watch, or so far."""
    engines = watch.state.engines.values()
    limited = tuple(one for engine in engines if (one := _limited(watch, engine)) is not None)
    if found := watch.findings():
        return Conclusion("findings", ", ".join(dict.fromkeys(one["symptom"] for one in found)), limited)
    down = _unreadable(watch.state)
    pending = [name for _, name in watch.pending() if not (down and name in _PENDING_WHILE_DOWN)]
    if pending:
        return Conclusion("pending", ", ".join(dict.fromkeys(pending)), limited)
    if reason := down or _without_engine(watch.state) or _too_short(watch):
        return Conclusion("unknown", reason)
    if limited:
        return Conclusion("pending", "; ".join(dict.fromkeys(one.text for one in limited)), limited)
    if reason := _not_enough(watch):
        return Conclusion("unknown", reason)
    return Conclusion("fine", "nothing is wrong")


def _limited(watch: Watch, engine: EngineState) -> Limited | None:
    watched = sum(engine.regime_seconds.values())
    delays = {regime: engine.regime_seconds.get(regime, 0.0) for regime in _DELAYS}
    if _is_short(watched) or sum(delays.values()) <= _HALF * watched:
        return None
    regime = max(delays, key=lambda one: delays[one])
    symptoms = _DELAYS[regime][1]
    symptom = symptoms[0]
    if _is_reported(watch.state, engine.key, symptoms) or symptom in watch.state.policy.disabled:
        return None
    waited = ", ".join(
        f"{_DELAYS[one][0]} for {percent(seconds / watched)}"
        for one, seconds in sorted(delays.items(), key=lambda item: -item[1])
        if seconds > _MIN_SHARE * watched
    )
    limits = watch.state.limits
    needs = limits[f"{symptom}.share"] * MINUTE if f"{symptom}.share" in limits else None
    watch_for = None if needs is None else MINUTE + limits[f"{symptom}.for"] + _MARGIN_S
    resolved = next((name for name in symptoms if watch.fired(name)), None)
    more = f"{symptom} did not fire"
    if needs is not None:
        more = f"{symptom} needs more than {needs:g} s within a minute"
    if resolved:
        watch_for, more = None, f"{resolved} fired and resolved"
    elif watch_for is not None and watch.duration_s >= watch_for:
        watch_for, more = None, f"{more}, which was not reached"
    elif watch_for is not None:
        more += f": watch longer, --for {watch_for:g}s"
    text = f"requests {waited} of {clock(watched)}; {more}"
    return Limited(engine.key, regime, delays[regime], watched, symptom, needs, watch_for, text)


def _is_reported(state: State, key: EngineKey, symptoms: tuple[str, ...]) -> bool:
    """Whether one of the symptoms is firing or pending on an engine."""
    return any(
        engine == key and name in symptoms and life.stage in {Stage.FIRING, Stage.PENDING}
        for engine, name, life in lifecycles(state)
    )


# -- reasons for unknown ---------------------------------------------------------------------------------------------


def _unreadable(state: State) -> str:
    if state.up:
        return ""
    if state.error is None:
        return "the server could not be scraped (no scrape was tried)"
    kind, detail = str(state.error.kind).replace("_", " "), state.error.detail
    return f"the server could not be scraped ({kind}: {detail})"


def _without_engine(state: State) -> str:
    return "" if state.engines else "vLLM exposes no engine yet: it has served no request"


def _is_short(seconds: float) -> bool:
    return round(seconds) < MIN_WATCHED_S


def _too_short(watch: Watch) -> str:
    watched = min(sum(engine.regime_seconds.values()) for engine in watch.state.engines.values())
    if not _is_short(watched):
        return ""
    return f"watched too short: {clock(watched)} of at least {clock(MIN_WATCHED_S)} (see --for)"


def _not_enough(watch: Watch) -> str:
    """Why the data is not enough for a verdict; empty if it is."""
    regimes = watch.regimes()
    total, down = sum(regimes.values()), regimes.get(Regime.DOWN, 0.0)
    if down > _HALF * total:
        return f"the server did not answer for {clock(down)} of {clock(total)} ({', '.join(watch.failures)})"
    for engine in watch.state.engines.values():
        unknown = sum(engine.regime_seconds.get(one, 0.0) for one in (Regime.UNKNOWN, Regime.DOWN))
        if engine.regime is Regime.UNKNOWN or unknown > _HALF * sum(engine.regime_seconds.values()):
            return f"the server does not expose enough ({_missing(engine)})"
    if regimes.get(Regime.UNKNOWN, 0.0) + down > _HALF * total:
        return "the server did not expose enough for most of the time"
    return ""


def _missing(engine: EngineState) -> str:
    missing = [f"{name}: {engine.snapshot.missing[name]}" for name in CORE if name in engine.snapshot.missing]
    return "; ".join(missing) or "requests waited, and no signal shows the reason"
