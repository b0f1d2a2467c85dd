"""Whether a server can be asked for only the samples that are read, and which.

Theory of operation
    A narrowed answer is used only after it was held against a whole page: it must have every series of that
    page that kvwatch reads (`same_series`). That is tried at the start, after every restart of vLLM, and every
    ten minutes. While it is in use, a whole page a minute shows what is new. An answer that fails or lacks a
    name ends the use at once; the next try comes a minute later, then two, four, at most ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kvwatch.core.exposition import BadExposition, Reader
from kvwatch.core.outcome import Failure, Outcome, Pace, Scrape
from kvwatch.core.signals import CORE
from kvwatch.core.state import State
from kvwatch.core.vllm import Vocabulary, sample_names

PROBE_EVERY_S = 600.0
WHOLE_EVERY_S = 60.0
_FIRST_RETRY_S = 60.0
_AGAIN = frozenset({Failure.HTTP_STATUS, Failure.TOO_LARGE, Failure.MALFORMED, Failure.CONNECTION})
"""Failures of a narrowed scrape after which a whole page may still come, in the same tick."""


class Narrowing:
    """The narrowing of one target. Times in monotonic seconds."""

    def __init__(self, mode: Literal["auto", "never"]) -> None:
        self.in_use = False
        self._allowed = mode == "auto"
        self._probe_at = 0.0
        self._restarts = 0
        self._whole_at: float | None = None
        self._retry_s = _FIRST_RETRY_S
        self._started = False

    def names(self, state: State, pace: Pace, now: float) -> tuple[str, ...] | None:
        """The names to ask for; None for a whole page."""
        if not self.in_use or not state.up or state.restarts != self._restarts:
            return None
        if pace is Pace.FULL and (self._whole_at is None or now - self._whole_at >= WHOLE_EVERY_S - 0.05):
            return None
        if not complete(state):
            return None
        return sample_names(state.policy.vocabulary, state.exposed, pace) or None

    def saw_whole(self, now: float) -> None:
        self._whole_at = now

    def probe_due(self, state: State, now: float) -> bool:
        """Whether a narrowed answer should be held against the whole page that was just read."""
        if not self._allowed or not state.up or not complete(state):
            return False
        return not self._started or state.restarts != self._restarts or now >= self._probe_at

    def probe_names(self, state: State) -> tuple[str, ...]:
        """What to ask for in a try: every name that is read."""
        return sample_names(state.policy.vocabulary, state.exposed, Pace.FULL)

    def probed(self, state: State, good: bool, now: float) -> bool:
        """Takes the result of a try; whether it is news: the first, or another than before."""
        changed = good is not self.in_use or not self._started
        self.in_use, self._started, self._restarts = good, True, state.restarts
        if good:
            self._retry_s = _FIRST_RETRY_S
            self._probe_at = now + PROBE_EVERY_S
        else:
            self._probe_at = now + self._retry_s
            self._retry_s = min(self._retry_s * 2, PROBE_EVERY_S)
        return changed

    def objection(self, outcome: Outcome, names: Sequence[str]) -> str:
        """Why a narrowed answer ends the use of narrowing; empty if it does not."""
        if isinstance(outcome, Scrape):
            absent = lacking(outcome.body, names)
            return f"{len(absent)} of the names asked for are not in it: {absent[0]}" if absent else ""
        return outcome.detail if outcome.kind in _AGAIN or outcome.kind is Failure.TIMEOUT else ""

    @staticmethod
    def worth_a_whole_page(outcome: Outcome) -> bool:
        """Whether a whole page should be asked for at once instead."""
        return isinstance(outcome, Scrape) or outcome.kind in _AGAIN


def complete(state: State) -> bool:
    """Whether every engine shows what is asked for every second; some releases expose it with the first request."""
    needed = (*CORE, "requests_finished_total")
    return bool(state.engines) and not any(
        name in engine.snapshot.missing for engine in state.engines.values() for name in needed
    )


def lacking(body: bytes, names: Sequence[str]) -> list[str]:
    """The names of which no sample begins a line of the body."""
    text = b"\n" + body
    found = []
    for name in names:
        line = b"\n" + name.encode()
        if line + b"{" not in text and line + b" " not in text:
            found.append(name)
    return found


def same_series(vocabulary: Vocabulary, whole: bytes, narrowed: bytes) -> bool:
    """Whether the narrowed page has every series of the whole one that kvwatch reads."""
    reader = Reader(lambda name: vocabulary.role(name) is not None)
    try:
        before, after = reader.read(whole), reader.read(narrowed)
    except BadExposition:
        return False
    return set(before.series) <= set(after.series)
