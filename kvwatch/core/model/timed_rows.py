"""An immutable sequence of timed rows.

It is kept in chunks: appending shares all but the last chunk, so each state keeps its own history at the price of a
few pointers.
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
        """With `row` at its end, and what is wholly older than `keep_s` before it forgotten."""
        chunks, tail = self.chunks, (*self.tail, row)
        if len(tail) >= _CHUNK:
            chunks, tail = (*chunks, tail), ()
        return History(_kept(chunks, row.t - keep_s), tail)

    def kept(self, start: float) -> History[T]:
        """Without what is wholly older than `start`, as far as whole chunks are."""
        last = self.last
        return History() if last is None or last.t < start else History(_kept(self.chunks, start), self.tail)

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
        """The rows from `start` on, and the one before it, which still holds at `start`."""
        parts: list[Sequence[T]] = [self.tail]
        if not self.tail or self.tail[0].t > start:
            for chunk in reversed(self.chunks):
                parts.append(chunk)
                if chunk[0].t <= start:
                    break
        return cut([row for part in reversed(parts) for row in part], start)


def _kept(chunks: tuple[tuple[T, ...], ...], start: float) -> tuple[tuple[T, ...], ...]:
    """The chunks but those at whose end another begins that still holds at `start`."""
    drop = 0
    while drop < len(chunks) - 1 and chunks[drop + 1][0].t <= start:
        drop += 1
    return chunks[drop:] if drop else chunks


def cut(rows: list[T], start: float) -> list[T]:
    """The rows from `start` on, and the one before it, which still holds at `start`."""
    first = bisect_right(rows, start, key=lambda row: row.t)
    return rows[max(first - 1, 0) :]
