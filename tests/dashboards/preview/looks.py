"""Grafana's field options: words, units, colours, thresholds, overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

BACKGROUND, PANEL, LINE, TEXT, FAINT = "#111217", "#181b1f", "#2f333a", "#d8d9da", "#8e9199"
#: Of series that have no colour of their own, as Grafana's classic palette begins.
CLASSIC = ("#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0")


def properties(panel: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The defaults of a field, with the overrides of its name; nested ones as ``custom.width``."""
    defaults = panel["fieldConfig"]["defaults"]
    found = {**defaults, **{f"custom.{key}": value for key, value in defaults["custom"].items()}}
    for one in panel["fieldConfig"]["overrides"]:
        if one["matcher"]["options"] == name:
            found |= {item["id"]: item["value"] for item in one["properties"]}
    return found


def text(value: str | float, look: Mapping[str, Any]) -> str:
    """A value as it is shown: mapped, or with its unit."""
    word = _mapped(value, look)
    if word:
        return str(word["text"])
    return value if isinstance(value, str) else number(value, look.get("unit", "none"), look.get("decimals"))


def colour(value: str | float, look: Mapping[str, Any]) -> str:
    """Of a mapping, fixed, or by the thresholds."""
    word = _mapped(value, look)
    if word and word.get("color"):
        return str(word["color"])
    if look["color"]["mode"] == "fixed":
        return str(look["color"]["fixedColor"])
    steps = look["thresholds"]["steps"]
    if isinstance(value, str) or math.isnan(value):
        return FAINT
    return str([one["color"] for one in steps if one["value"] is None or one["value"] <= value][-1])


def _mapped(value: str | float, look: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for one in look.get("mappings", ()):
        if one["type"] == "value":
            key = value if isinstance(value, str) else f"{value:g}"
            if key in one["options"]:
                found: Mapping[str, Any] = one["options"][key]
                return found
        elif isinstance(value, float) and math.isnan(value):
            result: Mapping[str, Any] = one["options"]["result"]
            return result
    return None


def number(value: float, unit: str, decimals: int | None = None) -> str:
    """As Grafana writes it, near enough."""
    if math.isinf(value):
        return "∞"
    match unit:
        case "percentunit":
            return f"{_round(value * 100, decimals)}%"
        case "s":
            return (
                f"{_round(value, decimals)} s"
                if value >= 1 or value == 0
                else f"{_round(value * 1000, decimals)} ms"
            )
        case "dtdurations":
            return f"{value:.0f} s" if value < 60 else f"{value // 60:.0f} min {value % 60:.0f} s"
        case "bytes" | "Bps":
            scaled = next(
                (
                    (value / 1024**n, name)
                    for n, name in ((3, "GiB"), (2, "MiB"), (1, "KiB"))
                    if value >= 1024**n
                ),
                (value, "B"),
            )
            return f"{_round(scaled[0], decimals)} {scaled[1]}" + ("/s" if unit == "Bps" else "")
        case "short":
            scaled = next(
                (
                    (value / 1000**n, name)
                    for n, name in ((3, " Bil"), (2, " Mil"), (1, " K"))
                    if value >= 1000**n
                ),
                (value, ""),
            )
            return f"{_round(scaled[0], decimals)}{scaled[1]}"
        case "locale":
            return f"{value:,.0f}"
        case "reqps":
            return f"{_round(value, decimals)} req/s"
        case "cps":
            return f"{_round(value, decimals)} c/s"
        case _:
            return _round(value, decimals)


def _round(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
