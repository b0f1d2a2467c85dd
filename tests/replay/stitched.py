"""An hour of healthy load, made of recordings of real servers one after another."""

import re
from collections.abc import Iterator
from functools import cache

from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.model.outcome import Scrape
from tests.support.pages import RECORDINGS, polls
from tests.support.watch import Watch

#: Recordings of one release in which all was well, in an order that mixes them.
PARTS = (
    "0.32.0--b-healthy",
    "0.32.0--a-idle",
    "0.32.0--k-two-model-names",
    "0.32.0--b-healthy",
    "0.32.0--e-shared-prefix",
    "0.32.0--k-two-model-names",
)
_SAMPLE = re.compile(r"^(?P<series>[^#\s][^ ]*) (?P<value>\S+)$", re.MULTILINE)
_COUNTS = re.compile(r"_(total|bucket|sum|count)(\{|$)")


@cache
def _pages(name: str) -> tuple[str, ...]:
    return tuple(poll["body"] for poll in polls(RECORDINGS / f"{name}.jsonl.gz") if poll["status"] == 200)


def hour() -> Iterator[str]:
    """Pages a second apart: gauges as recorded, counters going on from where the part before ended.

    It is one process, and one cache, throughout: what says when it started or how it is set up is of the first page.
    """
    reached: dict[str, float] = {}
    fixed: dict[str, str] = {}
    seconds, first = 0, _pages(PARTS[0])[0]
    for line in first.splitlines():
        if line.startswith(("process_start_time_seconds ", "vllm:cache_config_info{")):
            fixed[line.partition(" ")[0].partition("{")[0]] = line
    while seconds < 3600:
        for name in PARTS:
            before = dict(reached)
            for body in _pages(name):
                seconds += 1
                yield _SAMPLE.sub(lambda match: _going_on(match, before, reached, fixed), body)  # noqa: B023


def _going_on(
    match: re.Match[str], before: dict[str, float], reached: dict[str, float], fixed: dict[str, str]
) -> str:
    series, value = match["series"], match["value"]
    name = series.partition("{")[0]
    if name in fixed:
        return fixed[name]
    if not _COUNTS.search(series):
        return match[0]
    reached[series] = before.get(series, 0.0) + float(value)
    return f"{series} {reached[series]!r}"


def watched() -> Watch:
    """The hour as a poller sees it."""
    watch = Watch()
    for body in hour():
        now = watch.now + watch.interval
        watch.outcome(Scrape(body.encode(), 1.8e9 + now, pace=next_pace(watch.state, now)))
    return watch
