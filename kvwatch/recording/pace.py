"""The polling interval around each record of a recording, and a clock that never goes back."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvwatch.recording.format import Record, Skipped

_SPACINGS = 10
"""The interval at a record is the median of this many spacings before it and as many after it."""
_MAX_BUFFERED = 40
"""Most records that are buffered: the time of some recordings does not advance."""
_MAX_BUFFERED_BYTES = 64 << 20
_DEFAULT_SPACING_S = 1.0


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The clock of a recording went back by `back_s` seconds; `t` is the time used instead."""

    t: float
    back_s: float

    @property
    def text(self) -> str:
        return (
            f"the clock of the recording went back by {self.back_s:g} s here;"
            " the real gap is not known, the usual interval is assumed"
        )


def with_spacing(
    records: Iterable[Record | Skipped], on_step: Callable[[ClockStep], None] = lambda _: None
) -> Generator[tuple[Record | Skipped, float], None, None]:
    """Each record with the polling interval around it, in seconds.

    The interval is the median of about twenty spacings, half of them before the record and half after it. So a
    change of pace is not taken for an outage.

    Times never decrease. If the clock of the recording goes back, this record and all after it are shifted
    forward, and `on_step` is called.
    """
    waiting: deque[tuple[Record | Skipped, int]] = deque()  # each with the number of spacings up to it
    recent: deque[float] = deque(maxlen=2 * _SPACINGS)
    seen, last, size = 0, None, 0
    for item in _monotonic(records, on_step):
        if isinstance(item, Record):
            if last is not None and item.t > last:
                recent.append(item.t - last)
                seen += 1
            last = item.t
        waiting.append((item, seen))
        size += _size(item)
        del item
        while waiting and (
            seen - waiting[0][1] >= _SPACINGS or len(waiting) > _MAX_BUFFERED or size > _MAX_BUFFERED_BYTES
        ):
            size -= _size(waiting[0][0])
            yield waiting.popleft()[0], _median(recent)
    for item, before in waiting:
        while len(recent) > 1 and seen - len(recent) < before - _SPACINGS:
            recent.popleft()
        yield item, _median(recent)


def _monotonic(
    records: Iterable[Record | Skipped], on_step: Callable[[ClockStep], None]
) -> Iterator[Record | Skipped]:
    """The records with times that never decrease."""
    recent: deque[float] = deque(maxlen=2 * _SPACINGS)
    shift, last = 0.0, None
    for item in records:
        if isinstance(item, Skipped):
            yield item
            continue
        t = item.t + shift
        if last is not None and t < last:
            step = ClockStep(last + _median(recent), last - t)
            on_step(step)
            shift += step.t - t
            t = step.t
        elif last is not None and t > last:
            recent.append(t - last)
        last = t
        yield replace(item, t=t) if shift else item


def _size(item: Record | Skipped) -> int:
    return len(item.body) if isinstance(item, Record) else 0


def _median(spacings: Sequence[float]) -> float:
    return statistics.median(spacings) if spacings else _DEFAULT_SPACING_S
