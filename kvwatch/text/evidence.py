"""Evidence of a finding as names, values and thresholds that people read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvwatch.text.numbers import format_duration, format_number, join_list

_LIMIT = "threshold_"
_WINDOW = "window_seconds"
"""Over what was looked: held against nothing."""


def split_thresholds(evidence: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers that were judged, and those that they were judged by, under the same names; what is empty says
    nothing."""
    found = {name: value for name, value in evidence.items() if value not in ("", [], (), {})}
    judged = {name: value for name, value in found.items() if not name.startswith(_LIMIT)}
    limits = {name.removeprefix(_LIMIT): value for name, value in found.items() if name.startswith(_LIMIT)}
    return judged, limits


class EvidenceRow(NamedTuple):
    """A number of the evidence and what it was held against, each with its name; None where one of them is missing.

    `title` is the name that says what it is.
    """

    title: str
    judged: tuple[str, Any] | None
    limit: tuple[str, Any] | None


def evidence_rows(evidence: Mapping[str, Any]) -> list[EvidenceRow]:
    """The numbers that were judged, each with its threshold: that of the same name, else the only one that its name
    ends in; thresholds of which that can't be told come last."""
    judged, limits = split_thresholds(evidence)
    against = {name: name for name in limits if name in judged}
    for name in limits.keys() - against.keys():
        ends = [one for one in judged if one.endswith(f"_{name}") and one not in {*limits, _WINDOW}]
        if len(ends) == 1:
            against[name] = ends[0]
    held = {one: (_LIMIT + name, limits[name]) for name, one in against.items()}
    return [EvidenceRow(name, (name, value), held.get(name)) for name, value in judged.items()] + [
        EvidenceRow(name, None, (_LIMIT + name, value))
        for name, value in limits.items()
        if name not in against
    ]


def format_evidence(name: str, value: Any) -> str:
    """A number of the evidence with its name, in words."""
    return f"{evidence_label(name)} {format_value(name, value)}".lstrip()


def evidence_label(name: str) -> str:
    """What a number of the evidence is called in words; empty if it is only a unit, which is said with the value."""
    plain_name, _, label = name.partition("{")
    if _is_timed(plain_name):
        plain_name = plain_name.removesuffix("seconds").removesuffix("_")
    words = plain_name.removesuffix("_percentile").replace("_", " ")
    return f"{words} p{label.split(_QUOTE)[1]}" if label else words


def evidence_title(name: str) -> str:
    """What a number of the evidence is called at the head of a line; of one that is only a unit, what it measures."""
    words = evidence_label(name) or "time"
    return " ".join(_SHORT.get(word.lower(), word) for word in (words[:1].upper() + words[1:]).split())


_SHORT = {word.lower(): word for word in ("KV", "TTFT", "ITL", "GPU", "SM", "LoRA")}


_QUOTE = '"'


def format_value(name: str, value: Any) -> str:
    """A value of the evidence for people; what its name ends in says what it is."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(str(key), one)}" for key, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return join_list(format_value(name, one) for one in value)
    timed = _is_timed(name.partition("{")[0]) or name == "seconds_ago"
    if timed and isinstance(value, int | float) and not isinstance(value, bool):
        return format_duration(value)
    return format_number(value)


def _is_timed(name: str) -> bool:
    return name == "seconds" or name.endswith("_seconds")
