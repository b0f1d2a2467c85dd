"""Records as what a scrape came to, for the judgement."""

from __future__ import annotations

import re

from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.recording.records import Record

#: What the text of an error says, to the kind of failure; the first that fits.
_KINDS: tuple[tuple[re.Pattern[str], Failure], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"refused|errno 111|errno 61", Failure.REFUSED),
        (r"time[d]?[ -]?out|no (whole )?answer|errno 110", Failure.TIMEOUT),
        (r"name resolution|resolve|getaddrinfo|name or service|nodename|\bdns\b", Failure.DNS),
        (r"\bssl\b|\btls\b|certificate", Failure.TLS),
        (r"http (status|error)|status code", Failure.HTTP_STATUS),
        (r"too large|longer than|body size", Failure.TOO_LARGE),
        (r"malformed|compressed|encoded", Failure.MALFORMED),
    )
)


def outcome_of(record: Record, *, interval_s: float, pace: Pace = Pace.FULL) -> Outcome:
    """A record as what a scrape came to."""
    if record.status == 200:
        return Scrape(
            record.body,
            record.t,
            interval_s=interval_s,
            pace=pace,
            content_type=record.content_type,
            facts=record.facts,
            gpu=record.gpu,
        )
    if record.status:
        detail = f"the answer is HTTP status {record.status}"
        return ScrapeError(Failure.HTTP_STATUS, detail, record.t, interval_s=interval_s, gpu=record.gpu)
    detail = " ".join(record.error.split())[:200] or "not reachable"
    return ScrapeError(failure_of(detail), detail, record.t, interval_s=interval_s, gpu=record.gpu)


def failure_of(text: str) -> Failure:
    """The kind of failure that the text of an error tells."""
    return next((kind for pattern, kind in _KINDS if pattern.search(text)), Failure.CONNECTION)
