"""Whether a server can be asked for only the samples that are read, and which.

Theory of operation
    A narrowed answer is used only after it was held against a whole page: it must have every series of that
    page that kvwatch reads, and be less than that page, which it is not behind a proxy that drops the query or
    the slash (`fault_of`). That is tried at the start, after every restart of vLLM, and every ten minutes. While
    it is in use, a whole page a minute shows what is new. An answer that has fewer series of a name than the last
    good page had, as when one engine is missing, is followed by a whole page in the same tick; if that has more, or
    if only the narrowed one fails, the use ends at once. The next try comes a minute later, then two, four, at most
    ten.

    A busy vLLM may miss a deadline now and then, and a whole page is more work for it than a narrowed one. So
    one answer that does not come in time ends nothing, and the next is asked for narrowed; two in a row do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from kvwatch.core.dialect.vllm import LATE, Vocabulary, sample_names
from kvwatch.core.exposition.parser import ExpositionError, PageReader
from kvwatch.core.judgement.state import State
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.signals import CORE

PROBE_EVERY_S = 600.0
WHOLE_EVERY_S = 60.0
_FIRST_RETRY_S = 60.0
_AGAIN = frozenset({Failure.HTTP_STATUS, Failure.TOO_LARGE, Failure.MALFORMED, Failure.CONNECTION})
"""Failures of a narrowed scrape after which a whole page may still come, in the same tick."""
_LATE_IN_A_ROW = 2
_NAMES = re.compile(rb"^([^{\s#]+)[{ ]", re.MULTILINE)
HELD = "a narrowed answer holds all that is read of the whole page"
"""Why narrowing is used, when it is."""
UNHEEDED = "narrowed, the answer is the whole page all the same: names are not heeded there"


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
        self._late = 0
        self._series: Mapping[str, int] = {}
        """How many series each name had on the last good page, whole or narrowed."""
        self._wanted: dict[Pace, tuple[Sequence[str], tuple[str, ...]]] = {}
        """By pace, what was exposed and which names of it are asked for: the same until the next whole page."""
        self._lines: Mapping[tuple[str, ...], list[bytes]] = {}
        """By what was asked for, the name at each line of the last narrowed answer that lacked nothing."""
        self._whole: bytes | None = None
        """A whole page of which the series are not counted yet: nobody may ever need them."""

    def names(self, state: State, pace: Pace, now: float) -> tuple[str, ...] | None:
        """The names to ask for; None for a whole page."""
        late = self._late > 0
        if not self.in_use or not (state.up or late) or state.restarts != self._restarts:
            return None
        whole_due = self._whole_at is None or now - self._whole_at >= WHOLE_EVERY_S - 0.05
        if pace is Pace.FULL and whole_due and not late:
            return None
        if not complete(state):
            return None
        return self._names(state, pace) or None

    def saw_whole(self, body: bytes, now: float) -> None:
        """Takes a good whole page: what narrowed ones must have from now on."""
        self._whole_at = now
        self._whole = body

    def probe_due(self, state: State, now: float) -> bool:
        """Whether a narrowed answer should be held against the whole page that was just read."""
        if not self._allowed or not state.up or not complete(state):
            return False
        return not self._started or state.restarts != self._restarts or now >= self._probe_at

    def probe_names(self, state: State) -> tuple[str, ...]:
        """What to ask for in a try: every name that is read."""
        return self._names(state, Pace.FULL)

    def _names(self, state: State, pace: Pace) -> tuple[str, ...]:
        exposed, names = self._wanted.get(pace, (None, ()))
        if exposed is not state.exposed:
            names = sample_names(state.policy.vocabulary, state.exposed, pace)
            self._wanted[pace] = state.exposed, names
        return names

    def probed(self, state: State, good: bool, now: float) -> bool:
        """Takes the result of a try; whether it is news: the first, or another than before."""
        changed = good is not self.in_use or not self._started
        self.in_use, self._started, self._restarts, self._late = good, True, state.restarts, 0
        if good:
            self._retry_s = _FIRST_RETRY_S
            self._probe_at = now + PROBE_EVERY_S
        else:
            self._probe_at = now + self._retry_s
            self._retry_s = min(self._retry_s * 2, PROBE_EVERY_S)
        return changed

    def postponed(self, answer: Outcome, now: float) -> bool:
        """Whether a try tells nothing, as the first late answer while narrowing is in use; the next comes soon."""
        if not self.in_use or not is_late(answer) or self._late:
            return False
        self._late, self._probe_at = 1, now + _FIRST_RETRY_S
        return True

    def objection(self, outcome: Outcome, names: Sequence[str] | None) -> str:
        """Why an answer ends the use of narrowing; empty if it does not. Every answer must be shown."""
        self._late = self._late + 1 if is_late(outcome) else 0
        if not self.in_use or names is None:
            return ""
        if isinstance(outcome, Scrape):
            return self._fewer(outcome.body, tuple(names))
        if is_late(outcome):
            return f"{self._late} in a row: {outcome.detail}" if self._late >= _LATE_IN_A_ROW else ""
        return outcome.detail if outcome.kind in _AGAIN else ""

    def _fewer(self, body: bytes, names: tuple[str, ...]) -> str:
        """Of which names a narrowed answer has fewer series than the last good page; empty if of none."""
        found = _NAMES.findall(body)
        if self._whole is not None:
            self._series, self._whole, self._lines = series_of(self._whole), None, {}
        elif found == self._lines.get(names):
            return ""  # line by line what the answer before had
        there = _counted(found)
        fewer = lacking(there, self._series, names)
        if fewer:
            return _lacks("names asked for in whole or in part", fewer)
        series = {**self._series, **there}
        kept = self._lines if series == self._series else {}  # of which no more is expected since
        self._series, self._lines = series, {**kept, names: found}
        return ""


def is_late(outcome: Outcome) -> bool:
    return isinstance(outcome, ScrapeError) and outcome.kind is Failure.TIMEOUT


def complete(state: State) -> bool:
    """Whether every engine that is there shows what is asked for every second; some releases expose it with the
    first request."""
    needed = (*CORE, "requests_finished_total")
    there = [engine for engine in state.engines.values() if engine.seen_at == state.good_at]
    return bool(there) and not any(name in engine.snapshot.missing for engine in there for name in needed)


def series_of(body: bytes) -> Mapping[str, int]:
    """How many samples of each name a page has."""
    return _counted(_NAMES.findall(body))


def _counted(found: Iterable[bytes]) -> Mapping[str, int]:
    return Counter(name.decode("ascii", "replace") for name in found)


def lacking(there: Mapping[str, int], expected: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """The names of which there are fewer series than expected, or none where some must be."""
    return [name for name in names if there.get(name, 0) < max(expected.get(name, 0), name not in LATE)]


def same_lack(narrowed: bytes, whole: bytes, names: Iterable[str]) -> bool:
    """Whether a narrowed answer has all series that a whole page right after it has: it was not the narrowing."""
    expected, there = series_of(whole), series_of(narrowed)
    return all(there.get(name, 0) >= expected.get(name, 0) for name in names)


def fault_of(vocabulary: Vocabulary, whole: bytes, names: Iterable[str], answer: Outcome) -> str:
    """Why an answer to these names is not used in place of the whole page; empty if it has every series that
    kvwatch reads, and not everything else as well."""
    if isinstance(answer, ScrapeError):
        return f"narrowed, {answer.detail}"
    reader = PageReader(lambda name: vocabulary.role(name) is not None)
    try:
        before, after = reader.read(whole), reader.read(answer.body)
    except ExpositionError as bad:
        return f"narrowed, the page can't be read: {bad}"
    there = set(after.series)
    absent = [series.name for series in before.series if series not in there]
    if absent:
        return _lacks("series", absent)
    found = series_of(answer.body).keys()
    return UNHEEDED if found - set(names) and found >= series_of(whole).keys() else ""


def _lacks(what: str, absent: Sequence[str]) -> str:
    return f"the narrowed answer lacks {len(absent)} of the {what}, e.g. {absent[0]}"
