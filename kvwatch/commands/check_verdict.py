"""What `check` makes of a watch: findings, something on the way, fine, or not enough to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvwatch.commands.terminal_text import clock
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.export.findings import lifecycles
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.derive import MINUTE
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.signals import CORE
from kvwatch.core.model.snapshot import EngineKey

#: What is pending while a server does not answer, or not as a vLLM.
_DOWN = frozenset({"target_down", "startup_kv_failure", "signals_missing"})
ENOUGH_S = 10.0
"""Less than this says nothing: a request may be longer."""
_HALF = 0.5
_MENTIONED = 0.05
_MARGIN_S = 30.0
"""How much longer than a finding needs one should watch."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """A regime that holds requests back: in words, and the symptoms that tell of it, the plain one first."""

    words: str
    symptoms: tuple[str, ...]


_LIMITS: Mapping[Regime, _Limit] = {
    Regime.KV_LIMITED: _Limit(
        "waited for the KV cache", ("kv_exhausted", "kv_thrashing", "long_request_hogs_cache")
    ),
    Regime.SEQUENCE_LIMITED: _Limit("waited for a slot in the batch", ("sequence_limited",)),
    Regime.PREFILL_LIMITED: _Limit("waited for prefill", ("prefill_limited",)),
    Regime.DEFERRED: _Limit("waited for a LoRA slot, a KV transfer or a grammar", ("requests_deferred",)),
    Regime.STALLED: _Limit("stood still", ("engine_stalled",)),
}


@dataclass(frozen=True, slots=True)
class Limited:
    """An engine whose requests were held back for most of the time, without a finding that says so.

    `seconds` in `regime`, the longest of those that hold requests back, of `watched_s`. `symptom` is what would
    tell of it, with more than `needs_s` of a minute. `watch_for_s` is how long to
    watch for that, None if that was watched.
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
    """What it comes to: `word` is fine, findings, pending or unknown; `code` is the exit code."""

    word: str
    why: str
    limited: tuple[Limited, ...] = ()

    @property
    def code(self) -> int:
        return {"fine": 0, "findings": 1, "pending": 1, "unknown": 2}[self.word]


def conclude(watch: Watch) -> Conclusion:
    """The verdict on what was watched."""
    limited = tuple(limits(watch))
    if found := watch.findings():
        return Conclusion("findings", ", ".join(dict.fromkeys(one["symptom"] for one in found)), limited)
    down = _unreadable(watch.state)
    on_the_way = [name for _, name in watch.pending() if not (down and name in _DOWN)]
    if on_the_way:
        return Conclusion("pending", ", ".join(dict.fromkeys(on_the_way)), limited)
    if reason := down or _unserved(watch.state) or _too_short(watch):
        return Conclusion("unknown", reason)
    if limited:
        return Conclusion("pending", "; ".join(dict.fromkeys(one.text for one in limited)), limited)
    if reason := _unknown(watch):
        return Conclusion("unknown", reason)
    return Conclusion("fine", "nothing is wrong")


def limits(watch: Watch) -> list[Limited]:
    """The engines that were held back for most of the time, where no finding and nothing pending says so."""
    return [
        found for engine in watch.state.engines.values() if (found := _limited(watch, engine)) is not None
    ]


def _limited(watch: Watch, engine: EngineState) -> Limited | None:
    watched = sum(engine.regime_seconds.values())
    held = {regime: engine.regime_seconds.get(regime, 0.0) for regime in _LIMITS}
    if _short(watched) or sum(held.values()) <= _HALF * watched:
        return None
    regime = max(held, key=lambda one: held[one])
    symptoms = _LIMITS[regime].symptoms
    if _told(watch.state, engine.key, symptoms) or symptoms[0] in watch.state.policy.disabled:
        return None
    words = ", ".join(
        f"{_LIMITS[one].words} in {seconds / watched:.0%}"
        for one, seconds in sorted(held.items(), key=lambda item: -item[1])
        if seconds > _MENTIONED * watched
    )
    symptom = symptoms[0]
    needs = _needed(watch.state, symptom)
    wait = None if needs is None else MINUTE + watch.state.limits[f"{symptom}.for"] + _MARGIN_S
    over = next((name for name in symptoms if watch.fired(name)), None)
    if over:
        more = f"the finding {over} fired and is over"
    elif needs is None or wait is None or watch.duration_s >= wait:
        wait, more = None, f"that was not enough for the finding {symptom}"
        more += f", which needs more than {needs:g} s within a minute" if needs is not None else ""
    else:
        more = f"the finding {symptom} needs more than {needs:g} s within a minute: watch longer, --for {wait:g}s"
    told = f"requests {words} of {clock(watched)}; {more}"
    return Limited(engine.key, regime, held[regime], watched, symptom, needs, None if over else wait, told)


def _told(state: State, key: EngineKey, symptoms: tuple[str, ...]) -> bool:
    return any(
        where == key and name in symptoms and life.stage in {Stage.FIRING, Stage.PENDING}
        for where, name, life in lifecycles(state)
    )


def _needed(state: State, symptom: str) -> float | None:
    """Seconds of a minute in its regime that a symptom needs."""
    share = f"{symptom}.share"
    return state.limits[share] * MINUTE if share in state.limits else None


# -- what can't be told ----------------------------------------------------------------------------------------------


def _unreadable(state: State) -> str:
    if state.up:
        return ""
    if state.error is None:
        return "the server could not be read (it was not scraped)"
    kind, detail = str(state.error.kind).replace("_", " "), state.error.detail
    return f"the server could not be read ({kind}: {detail})"


def _unserved(state: State) -> str:
    return "" if state.engines else "vLLM shows no engine yet: it has served no request"


def _short(seconds: float) -> bool:
    return round(seconds) < ENOUGH_S


def _too_short(watch: Watch) -> str:
    watched = min(sum(engine.regime_seconds.values()) for engine in watch.state.engines.values())
    if not _short(watched):
        return ""
    return f"watched too short to tell: {clock(watched)} of at least {clock(ENOUGH_S)} (see --for)"


def _unknown(watch: Watch) -> str:
    """Why it can't be said that all is well."""
    regimes = watch.regimes()
    down = regimes.get(Regime.DOWN, 0.0)
    if down > _HALF * sum(regimes.values()):
        kinds = ", ".join(watch.failures)
        return f"the server did not answer for {clock(down)} of {clock(sum(regimes.values()))} ({kinds})"
    for engine in watch.state.engines.values():
        unknown = sum(engine.regime_seconds.get(one, 0.0) for one in (Regime.UNKNOWN, Regime.DOWN))
        mostly = unknown > _HALF * sum(engine.regime_seconds.values())
        if mostly or engine.regime is Regime.UNKNOWN:
            return f"what the server shows is not enough to tell ({_missing(engine)})"
    if regimes.get(Regime.UNKNOWN, 0.0) + down > _HALF * sum(regimes.values()):
        return "most of the time the server showed not enough to tell"
    return ""


def _missing(engine: EngineState) -> str:
    lacking = [f"{name}: {engine.snapshot.missing[name]}" for name in CORE if name in engine.snapshot.missing]
    return "; ".join(lacking) or "requests were there, and nothing showed what they waited for"
