"""An immutable sequence of timed rows, in chunks.

Appending copies at most one chunk and shares the others, so each state keeps its own history for a few pointers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_CHUNK = 32


class Timed(Protocol):
    """Anything with a time, in monotonic seconds."""

    @property
    def t(self) -> float: ...


T = TypeVar("T", bound=Timed)


@dataclass(frozen=True, slots=True)
class History(Generic[T]):
    """An immutable sequence of timed rows, oldest first."""

    chunks: tuple[tuple[T, ...], ...] = ()
    tail: tuple[T, ...] = ()

    def append(self, row: T, keep_s: float) -> History[T]:
        """A history with `row` at its end, without chunks that are wholly older than `keep_s` before it."""
        chunks, tail = self.chunks, (*self.tail, row)
        if len(tail) >= _CHUNK:
            chunks, tail = (*chunks, tail), ()
        return History(_drop_before(chunks, row.t - keep_s), tail)

    def without_before(self, start: float) -> History[T]:
        """A history without chunks that are wholly older than `start`."""
        last = self.last
        if last is None or last.t < start:
            return History()
        return History(_drop_before(self.chunks, start), self.tail)

    def __len__(self) -> int:
        return sum(map(len, self.chunks)) + len(self.tail)

    @property
    def last(self) -> T | None:
        if self.tail:
            return self.tail[-1]
        return self.chunks[-1][-1] if self.chunks else None

    def rows(self) -> list[T]:
        return self.since(float("-inf"))

    def since(self, start: float) -> list[T]:
        """The rows from `start` on, and the one before, which is still valid at `start`."""
        parts: list[Sequence[T]] = [self.tail]
        if not self.tail or self.tail[0].t > start:
            for chunk in reversed(self.chunks):
                parts.append(chunk)
                if chunk[0].t <= start:
                    break
        return cut([row for part in reversed(parts) for row in part], start)


def _drop_before(chunks: tuple[tuple[T, ...], ...], start: float) -> tuple[tuple[T, ...], ...]:
    """The chunks without those that end before `start`; the row before `start` stays."""
    drop = 0
    while drop < len(chunks) - 1 and chunks[drop + 1][0].t <= start:
        drop += 1
    return chunks[drop:] if drop else chunks


def cut(rows: list[T], start: float) -> list[T]:
    """The rows from `start` on, and the one before, which is still valid at `start`."""
    first = bisect_right(rows, start, key=lambda row: row.t)
    return rows[max(first - 1, 0) :]
