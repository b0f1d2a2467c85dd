"""The figures of a server at one moment, for a progress bar."""

from __future__ import annotations

from collections.abc import Callable

from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import EngineState, State, initial
from kvwatch.core.model.outcome import Outcome
from kvwatch.text.numbers import format_number


class Figures:
    """Follows a server; over several engines requests and tokens are sums and usage is that of the fullest."""

    def __init__(self, target: str, policy: Policy) -> None:
        self._state = initial(target, policy)

    def take(self, outcome: Outcome, now: float) -> str:
        """What to show after an outcome at `now`: what is not known is left out."""
        self._state, _ = advance(self._state, outcome, now)
        return _shown(self._state)


def _shown(state: State) -> str:
    if not state.up:
        return str(state.failure or "")
    engines = list(state.engines.values())
    usage = _over(max, engines, lambda one: one.snapshot.number("kv_cache_usage_ratio"))
    parts = (
        ("running", _over(sum, engines, lambda one: one.snapshot.number("requests_running")), ""),
        ("waiting", _over(sum, engines, lambda one: one.snapshot.number("requests_waiting")), ""),
        ("KV", None if usage is None else 100 * usage, "%"),
        ("", _over(sum, engines, lambda one: one.derived.get("generation_tokens_per_second")), " tokens/s"),
    )
    return ", ".join(
        f"{name} {format_number(round(value))}{unit}".lstrip()
        for name, value, unit in parts
        if value is not None
    )


def _over(
    how: Callable[[list[float]], float],
    engines: list[EngineState],
    what: Callable[[EngineState], float | None],
) -> float | None:
    """One number of all engines; None if that of one is not known."""
    found = [value for one in engines if (value := what(one)) is not None]
    return how(found) if found and len(found) == len(engines) else None
