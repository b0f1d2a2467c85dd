"""The pace at which a recording was made, told around each record, and a clock that only goes on."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvwatch.recording.records import Record, Skipped

_SPACINGS = 10
"""So many spacings before a record, and as many after it, tell the pace it was recorded at."""
_AT_ONCE = 40
"""Records held at once at most: the time of some does not move."""
_BYTES_AT_ONCE = 64 << 20
"""Bytes of pages beyond which no more records are held."""
_DEFAULT_SPACING_S = 1.0


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The clock of a recording went back by some seconds; `t` is what is taken instead, after the record before."""

    t: float
    back_s: float

    @property
    def text(self) -> str:
        return (
            f"the clock of the recording went back by {self.back_s:g} s here:"
            " how much time passed is not known, and taken for as much as between the records before"
        )


def with_spacing(
    records: Iterable[Record | Skipped], stepped: Callable[[ClockStep], None] = lambda _: None
) -> Generator[tuple[Record | Skipped, float], None, None]:
    """Each record with the spacing that was kept around it, in seconds: the median of some twenty spacings, half of
    them before it and half after, so that a pace that changes is neither lost in time nor taken for an outage.

    Time only goes on: where the clock of the recording was put back, `stepped` is told, and that record and those
    after it are taken as later.
    """
    waiting: deque[tuple[Record | Skipped, int]] = deque()  # with how many spacings there were up to each
    lately: deque[float] = deque(maxlen=2 * _SPACINGS)
    seen, last, size = 0, None, 0
    for item in _onward(records, stepped):
        if isinstance(item, Record):
            if last is not None and item.t > last:
                lately.append(item.t - last)
                seen += 1
            last = item.t
        waiting.append((item, seen))
        size += _size(item)
        del item
        while waiting and (
            seen - waiting[0][1] >= _SPACINGS or len(waiting) > _AT_ONCE or size > _BYTES_AT_ONCE
        ):
            size -= _size(waiting[0][0])
            yield waiting.popleft()[0], _median(lately)
    for item, before in waiting:
        while len(lately) > 1 and seen - len(lately) < before - _SPACINGS:
            lately.popleft()
        yield item, _median(lately)


def _onward(
    records: Iterable[Record | Skipped], stepped: Callable[[ClockStep], None]
) -> Iterator[Record | Skipped]:
    """The records by a clock that is never put back."""
    lately: deque[float] = deque(maxlen=2 * _SPACINGS)
    shift, last = 0.0, None
    for item in records:
        if isinstance(item, Skipped):
            yield item
            continue
        t = item.t + shift
        if last is not None and t < last:
            step = ClockStep(last + _median(lately), last - t)
            stepped(step)
            shift += step.t - t
            t = step.t
        elif last is not None and t > last:
            lately.append(t - last)
        last = t
        yield replace(item, t=t) if shift else item


def _size(item: Record | Skipped) -> int:
    return len(item.body) if isinstance(item, Record) else 0


def _median(spacings: Sequence[float]) -> float:
    return statistics.median(spacings) if spacings else _DEFAULT_SPACING_S
