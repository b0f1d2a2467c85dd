"""Whether a server can be scraped for only the samples that kvwatch reads, and which names these are.

Theory of operation
    Narrowing is used only after a probe: a narrowed page is compared with a whole page. It must have every
    series of that page that kvwatch reads, and must be smaller; behind a proxy that drops the query or the
    slash it is not (`narrowing_fault`). Probes run at the start, after every restart of vLLM, and every ten
    minutes.

    While narrowing is used, one whole page a minute shows what is new. If a narrowed page has fewer series of
    a name than the last good page (for example one engine is missing), a whole page follows in the same tick.
    Narrowing ends at once if that page has more series, or if only the narrowed scrape fails. The next probe
    follows after one minute, then two, four, at most ten.

    A busy vLLM may miss a deadline now and then, and a whole page is more work for it. So one late answer
    does not end narrowing, and the next scrape is narrowed too; two late answers in a row end it.
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
_RETRY_WHOLE = frozenset({Failure.HTTP_STATUS, Failure.TOO_LARGE, Failure.MALFORMED, Failure.CONNECTION})
"""Failures of a narrowed scrape after which a whole page is scraped in the same tick."""
_MAX_LATE = 2
_NAMES = re.compile(rb"^([^{\s#]+)[{ ]", re.MULTILINE)
COMPLETE = "the narrowed page has every series that kvwatch reads"
"""The reason logged when narrowing starts."""
IGNORED = "the server ignores the names: the narrowed page is the whole page"


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
        """Number of series of each name on the last good page, whole or narrowed."""
        self._wanted: dict[Pace, tuple[Sequence[str], tuple[str, ...]]] = {}
        """By pace: the exposed names, and those of them to scrape. Valid until the next whole page."""
        self._lines: Mapping[tuple[str, ...], list[bytes]] = {}
        """By scraped names: the name on each line of the last complete narrowed page."""
        self._whole: bytes | None = None
        """A whole page whose series are not counted yet; often nobody needs the count."""

    def names(self, state: State, pace: Pace, now: float) -> tuple[str, ...] | None:
        """The names to scrape; None for a whole page."""
        late = self._late > 0
        if not self.in_use or not (state.up or late) or state.restarts != self._restarts:
            return None
        whole_due = self._whole_at is None or now - self._whole_at >= WHOLE_EVERY_S - 0.05
        if pace is Pace.FULL and whole_due and not late:
            return None
        if not complete(state):
            return None
        return self._names(state, pace) or None

    def record_whole(self, body: bytes, now: float) -> None:
        """Takes a good whole page, as the measure for narrowed ones."""
        self._whole_at = now
        self._whole = body

    def probe_due(self, state: State, now: float) -> bool:
        """Whether to compare a narrowed page with the whole page that was just read."""
        if not self._allowed or not state.up or not complete(state):
            return False
        return not self._started or state.restarts != self._restarts or now >= self._probe_at

    def probe_names(self, state: State) -> tuple[str, ...]:
        """The names for a probe: all that kvwatch reads."""
        return self._names(state, Pace.FULL)

    def _names(self, state: State, pace: Pace) -> tuple[str, ...]:
        exposed, names = self._wanted.get(pace, (None, ()))
        if exposed is not state.exposed:
            names = sample_names(state.policy.vocabulary, state.exposed, pace)
            self._wanted[pace] = state.exposed, names
        return names

    def record_probe(self, state: State, good: bool, now: float) -> bool:
        """Takes the result of a probe; returns whether it is the first one or differs from the last."""
        changed = good is not self.in_use or not self._started
        self.in_use, self._started, self._restarts, self._late = good, True, state.restarts, 0
        if good:
            self._retry_s = _FIRST_RETRY_S
            self._probe_at = now + PROBE_EVERY_S
        else:
            self._probe_at = now + self._retry_s
            self._retry_s = min(self._retry_s * 2, PROBE_EVERY_S)
        return changed

    def postpone(self, answer: Outcome, now: float) -> bool:
        """Whether a probe is inconclusive, as the first late answer while narrowing is in use.

        The next comes soon.
        """
        if not self.in_use or not is_late(answer) or self._late:
            return False
        self._late, self._probe_at = 1, now + _FIRST_RETRY_S
        return True

    def objection(self, outcome: Outcome, names: Sequence[str] | None) -> str:
        """Why an outcome ends narrowing; empty if it does not. Every outcome must be passed."""
        self._late = self._late + 1 if is_late(outcome) else 0
        if not self.in_use or names is None:
            return ""
        if isinstance(outcome, Scrape):
            return self._lost_series(outcome.body, tuple(names))
        if is_late(outcome):
            return f"{self._late} in a row: {outcome.detail}" if self._late >= _MAX_LATE else ""
        return outcome.detail if outcome.kind in _RETRY_WHOLE else ""

    def _lost_series(self, body: bytes, names: tuple[str, ...]) -> str:
        """The names of which a narrowed page has fewer series than the last good page, as text; or empty."""
        found = _NAMES.findall(body)
        if self._whole is not None:
            self._series, self._whole, self._lines = series_counts(self._whole), None, {}
        elif found == self._lines.get(names):
            return ""  # the same lines as on the page before
        counts = _counts(found)
        fewer = lacking(counts, self._series, names)
        if fewer:
            return _lacks("names in whole or in part", fewer)
        series = {**self._series, **counts}
        kept = self._lines if series == self._series else {}  # valid while no name gains series
        self._series, self._lines = series, {**kept, names: found}
        return ""


def is_late(outcome: Outcome) -> bool:
    return isinstance(outcome, ScrapeError) and outcome.kind is Failure.TIMEOUT


def complete(state: State) -> bool:
    """Whether every engine exposes the samples of the fast pace; some releases do so from the first request on."""
    needed = (*CORE, "requests_finished_total")
    engines = [engine for engine in state.engines.values() if engine.seen_at == state.good_at]
    return bool(engines) and not any(name in one.snapshot.missing for one in engines for name in needed)


def series_counts(body: bytes) -> Mapping[str, int]:
    """The number of samples of each name on a page."""
    return _counts(_NAMES.findall(body))


def _counts(names: Iterable[bytes]) -> Mapping[str, int]:
    return Counter(name.decode("ascii", "replace") for name in names)


def lacking(counts: Mapping[str, int], expected: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """The names with fewer series than expected, or with none where at least one is required."""
    return [name for name in names if counts.get(name, 0) < max(expected.get(name, 0), name not in LATE)]


def same_lack(narrowed: bytes, whole: bytes, names: Iterable[str]) -> bool:
    """Whether the whole page has no more series than the narrowed page before it: narrowing is not the cause."""
    expected, counts = series_counts(whole), series_counts(narrowed)
    return all(counts.get(name, 0) >= expected.get(name, 0) for name in names)


def narrowing_fault(vocabulary: Vocabulary, whole: bytes, names: Iterable[str], answer: Outcome) -> str:
    """Why a narrowed answer can't replace the whole page; empty if it can.

    It must have every series that kvwatch reads, and must not be the whole page.
    """
    if isinstance(answer, ScrapeError):
        return f"narrowed scrape failed: {answer.detail}"
    reader = PageReader(lambda name: vocabulary.role(name) is not None)
    try:
        before, after = reader.read(whole), reader.read(answer.body)
    except ExpositionError as bad:
        return f"the narrowed page is malformed: {bad}"
    present = set(after.series)
    absent = [series.name for series in before.series if series not in present]
    if absent:
        return _lacks("series", absent)
    found = series_counts(answer.body).keys()
    return IGNORED if found - set(names) and found >= series_counts(whole).keys() else ""


def _lacks(what: str, absent: Sequence[str]) -> str:
    return f"the narrowed page lacks {len(absent)} {what}, e.g. {absent[0]}"
