"""What deriving gives: numbers, what could not be told and why, and what nobody should judge by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite


@dataclass(frozen=True, slots=True)
class Derived:
    """Derived numbers by name; a percentile's name ends in ``{percentile="95"}``."""

    values: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    untrusted: Mapping[str, str] = field(default_factory=dict)
    at_least: frozenset[str] = frozenset()
    """Numbers that are lower bounds: the quantile lies beyond the histogram's last finite bound."""

    def get(self, name: str) -> float | None:
        return self.values.get(name)


class DerivedBuilder:
    """Collects numbers while they are derived."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.unknown: dict[str, str] = {}
        self.untrusted: dict[str, str] = {}
        self.at_least: set[str] = set()

    def put(self, name: str, value: float | None, reason: str) -> None:
        if value is None:
            self.unknown[name] = reason
        else:
            self.values[name] = value

    def close(self) -> Derived:
        for name in [name for name, value in self.values.items() if not isfinite(value)]:
            del self.values[name]
            self.unknown[name] = "the counters behind it are beyond what a number holds"
        return Derived(self.values, self.unknown, self.untrusted, frozenset(self.at_least))
