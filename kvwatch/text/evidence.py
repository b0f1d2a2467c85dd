"""Formats the evidence of a finding: names, values and thresholds, as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvwatch.text.numbers import format_duration, format_number, format_percent, join_list

_THRESHOLD = "threshold_"
_WINDOW = "window_seconds"
"""The time that was looked at. No threshold applies to it."""
_ABBREVIATIONS = {word.lower(): word for word in ("KV", "TTFT", "ITL", "GPU", "SM", "LoRA")}
_QUOTE = '"'


def split_thresholds(evidence: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The judged numbers, and the thresholds without their prefix. Empty values are left out."""
    found = {name: value for name, value in evidence.items() if value not in ("", [], (), {})}
    judged = {name: value for name, value in found.items() if not name.startswith(_THRESHOLD)}
    thresholds = {
        name.removeprefix(_THRESHOLD): value for name, value in found.items() if name.startswith(_THRESHOLD)
    }
    return judged, thresholds


class EvidenceRow(NamedTuple):
    """A number of the evidence and its threshold, each with its name; None if one of the two is missing.

    `title` is the name that the row is labelled with.
    """

    title: str
    judged: tuple[str, Any] | None
    limit: tuple[str, Any] | None


def evidence_rows(evidence: Mapping[str, Any]) -> list[EvidenceRow]:
    """The judged numbers, each with its threshold; thresholds that match no number come last.

    A threshold belongs to the number of the same name, else to the only number whose name ends in it.
    """
    judged, thresholds = split_thresholds(evidence)
    number_of = {name: name for name in thresholds if name in judged}
    for name in thresholds.keys() - number_of.keys():
        ends = [one for one in judged if one.endswith(f"_{name}") and one not in {*thresholds, _WINDOW}]
        if len(ends) == 1:
            number_of[name] = ends[0]
    limit_of = {one: (_THRESHOLD + name, thresholds[name]) for name, one in number_of.items()}
    return [EvidenceRow(name, (name, value), limit_of.get(name)) for name, value in judged.items()] + [
        EvidenceRow(name, None, (_THRESHOLD + name, value))
        for name, value in thresholds.items()
        if name not in number_of
    ]


class EvidenceText(NamedTuple):
    """One line of the evidence: ``KV cache usage``, ``99 %``, ``95 %``.

    `value` or `threshold` is empty if missing. `name` and `threshold_name` are the names in the API and the metrics.
    """

    label: str
    value: str
    threshold: str
    name: str
    threshold_name: str

    @property
    def title(self) -> str:
        """The label as the head of a line."""
        return _capitalize(self.label)

    def __str__(self) -> str:
        if not self.value:
            return f"{self.label} (threshold {self.threshold})"
        return f"{self.label} {self.value}" + (f" (threshold {self.threshold})" if self.threshold else "")


def evidence_texts(evidence: Mapping[str, Any]) -> tuple[EvidenceText, ...]:
    """The evidence as lines: the judged numbers, each with its threshold."""
    return tuple(
        EvidenceText(
            evidence_label(title) or "time",
            format_value(title, judged[1]) if judged else "",
            format_value(title, limit[1]) if limit else "",
            judged[0] if judged else "",
            limit[0] if limit else "",
        )
        for title, judged, limit in evidence_rows(evidence)
    )


def format_evidence(name: str, value: Any) -> str:
    """A number of the evidence with its label."""
    return f"{evidence_label(name)} {format_value(name, value)}".lstrip()


def evidence_label(name: str) -> str:
    """A name of the evidence in words, without the unit that the value shows; empty if it is only a unit."""
    plain_name, _, label = name.partition("{")
    if _is_seconds(plain_name):
        plain_name = plain_name.removesuffix("seconds").removesuffix("_")
    elif plain_name.endswith("hit_ratio"):
        plain_name = plain_name.removesuffix("ratio") + "rate"
    else:
        plain_name = plain_name.removesuffix("_ratio")
    parts = plain_name.removesuffix("_percentile").split("_")
    words = " ".join(_ABBREVIATIONS.get(part, part) for part in parts)
    return f"{words} p{label.split(_QUOTE)[1]}" if label else words


def evidence_title(name: str) -> str:
    """A name of the evidence as the head of a line."""
    return _capitalize(evidence_label(name) or "time")


def _capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]


def format_value(name: str, value: Any) -> str:
    """A value of the evidence for people. The end of its name gives the unit: seconds, or a share in percent."""
    if isinstance(value, Mapping):
        return (
            ", ".join(
                f"{str(key).replace('_', ' ')} {format_value(str(key), one)}" for key, one in value.items()
            )
            or "none"
        )
    if isinstance(value, list | tuple | set | frozenset):
        return join_list(format_value(name, one) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        plain_name = name.partition("{")[0]
        if _is_seconds(plain_name) or name == "seconds_ago":
            return format_duration(value)
        if plain_name.endswith(("ratio", "share", "usage")):
            return format_percent(value)
    return format_number(value, digits=2)


def _is_seconds(name: str) -> bool:
    return name == "seconds" or name.endswith("_seconds")
