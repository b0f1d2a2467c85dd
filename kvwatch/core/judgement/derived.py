"""The derived numbers of an engine, with the reasons for those that are unknown or not to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite


@dataclass(frozen=True, slots=True)
class Derived:
    """Derived numbers by name; the name of a percentile ends in ``{percentile="95"}``."""

    values: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Numbers that are unknown, with the reason."""
    untrusted: Mapping[str, str] = field(default_factory=dict)
    """Numbers in `values` that are shown but must not be judged by, with the reason."""
    at_least: frozenset[str] = frozenset()
    """Numbers that are lower bounds: the quantile lies above the histogram's last finite bound."""

    def get(self, name: str) -> float | None:
        return self.values.get(name)


class DerivedBuilder:
    """Collects derived numbers."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.unknown: dict[str, str] = {}
        self.untrusted: dict[str, str] = {}
        self.at_least: set[str] = set()

    def put(self, name: str, value: float | None, reason: str) -> None:
        """Adds a number; None is unknown for `reason`."""
        if value is None:
            self.unknown[name] = reason
        else:
            self.values[name] = value

    def build(self) -> Derived:
        for name in [name for name, value in self.values.items() if not isfinite(value)]:
            del self.values[name]
            self.unknown[name] = "its counters are too large for a floating-point number"
        return Derived(self.values, self.unknown, self.untrusted, frozenset(self.at_least))
