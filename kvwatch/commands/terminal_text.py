"""What kvwatch knows, in words for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvwatch.core.judgement.state import Event, Transition
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.text.evidence import format_evidence, split_thresholds
from kvwatch.text.redact import escape

_WIDTH = 100
_SHOWN = 4
"""Numbers of the evidence that fit on a line."""
_MENTIONED = 0.005
"""A smaller share of the time is not told of."""


def clock(seconds: float) -> str:
    """Time since a start, as ``1:05`` or ``2:01:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def evidence(found: Mapping[str, Any], most: int | None = None) -> str:
    """The numbers judged, and, if all are asked for, the thresholds behind them. What is empty says nothing.

    Of `most` numbers each is one that is there.
    """
    judged, limits = split_thresholds(
        {name: escape(value, keep="") if isinstance(value, str) else value for name, value in found.items()}
    )
    if most is not None:
        there = [format_evidence(name, value) for name, value in judged.items() if value is not None]
        return ", ".join(there[:most])
    against = ", ".join(format_evidence(name, value) for name, value in limits.items())
    return ", ".join(format_evidence(name, value) for name, value in judged.items()) + (
        f" (thresholds: {against})" if against else ""
    )


def engine(key: EngineKey) -> str:
    return _place(key)


def _place(parts: Iterable[str]) -> str:
    """Names that a server gave itself, which may hold anything, within a line."""
    return escape("/".join(part for part in parts if part), keep="")


def transition(change: Transition, start: float) -> str:
    """One line of a transcript."""
    why = evidence(change.evidence, _SHOWN) if str(change.after) != "unknown" else change.reason
    went = f"{change.before} -> {change.after}"
    return f"{clock(change.t - start):>8}  {engine(change.key)}  {change.symptom}  {went}  {why}".rstrip()


def event(found: Event, start: float) -> str:
    detail = evidence({name: value for name, value in found.detail.items() if value is not None}, _SHOWN)
    return (
        f"{clock(found.t - start):>8}  {engine(found.key)}  {found.kind.replace('_', ' ')}  {detail}".rstrip()
    )


def finding(found: Mapping[str, Any]) -> str:
    """A finding whole, from `report.finding`: what, since when, the evidence, likely causes, what to do in order."""
    where = _place(found.get(part) or "" for part in ("target", "model_name", "engine"))
    lines = [f"{found['severity'].upper()}: {found['title']}"]
    lines += wrapped(f"{found['symptom']} on {where}, firing for {clock(found['firing_seconds'])}", "  ")
    if found["explained_by"]:
        lines += wrapped(f"Explained by {', '.join(found['explained_by'])}: act on that first.", "  ")
    lines += wrapped(found["meaning"], "  ")
    lines += wrapped(f"Evidence: {evidence(found['evidence'])}", "  ")
    lines += listed("Likely causes:", [f"- {cause}" for cause in found["causes"]])
    lines += listed(
        "What to do, in this order:", [f"{i}. {a}" for i, a in enumerate(found["actions"], start=1)]
    )
    return "\n".join(lines)


def scrapes(count: int, seconds: float, failures: Mapping[str, int]) -> str:
    """How much was seen."""
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in failures.items())
    return f"{count} scrapes over {clock(seconds)}, " + (f"failed: {kinds}" if kinds else "none failed")


def shares(regimes: Mapping[str, float]) -> str:
    """Time per regime, longest first."""
    total = sum(regimes.values())
    if not total:
        return "nothing was watched long enough to tell"
    return ", ".join(
        f"{name} {regimes[name] / total:.0%} ({clock(regimes[name])})" for name in longest(regimes)
    )


def longest(regimes: Mapping[str, float]) -> list[str]:
    """The regimes that lasted long enough to be told of, longest first."""
    enough = _MENTIONED * sum(regimes.values())
    return sorted((name for name, some in regimes.items() if some >= enough), key=lambda name: -regimes[name])


def wrapped(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_HELD, text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )
    return [line.replace(_HELD, " ") for line in lines]


#: A number and its unit stay on one line.
_BEFORE_UNIT, _HELD = re.compile(r"(?<=\d) (?=(?:s|min)\b)"), "\N{NO-BREAK SPACE}"


def listed(title: str, items: list[str]) -> Iterator[str]:
    if items:
        yield f"  {title}"
        for item in items:
            yield from wrapped(item, "    ")
