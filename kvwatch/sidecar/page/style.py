"""The colours of the page, light and dark, by name; what they are used for is in `static/page.css`.

Every text colour has a contrast of at least 4.5 to its paper. Regimes and lines are in the colours of Okabe and Ito,
which people who see few colours tell apart; each also has its name beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.history.regimes import Regime

LIGHT: Mapping[str, str] = {
    "ink": "#1b1f24",
    "dim": "#5b6570",
    "critical": "#b42318",
    "warning": "#8f5400",
    "info": "#1f5fa8",
    "good": "#1a7f4b",
    "line": "#d6dbe1",
    "paper": "#ffffff",
}
DARK: Mapping[str, str] = {
    "ink": "#e4e8ec",
    "dim": "#98a3ae",
    "critical": "#ff8b80",
    "warning": "#f2b45a",
    "info": "#7fb8f5",
    "good": "#6bd49b",
    "line": "#343b43",
    "paper": "#14181c",
}
#: The lines of the charts, light and dark, each with a contrast of at least 3 to its paper.
LINES: Mapping[str, tuple[str, str]] = {
    "one": ("#0072b2", "#56b4e9"),
    "two": ("#d55e00", "#e69f00"),
    "three": ("#008060", "#2fc39a"),
}
REGIMES: Mapping[Regime, str] = {
    Regime.IDLE: "#b8bec6",
    Regime.FLOWING: "#009e73",
    Regime.FULL: "#f0e442",
    Regime.KV_LIMITED: "#d55e00",
    Regime.SEQUENCE_LIMITED: "#0072b2",
    Regime.PREFILL_LIMITED: "#56b4e9",
    Regime.DEFERRED: "#cc79a7",
    Regime.STALLED: "var(--ink)",
    Regime.UNKNOWN: "var(--dim)",
    Regime.DOWN: "var(--critical)",
}


def variables() -> str:
    """The colours as CSS, for the rules to use: those of the regimes as ``.NAME``, all others as ``--NAME``."""
    light = {**LIGHT, **{name: pair[0] for name, pair in LINES.items()}}
    dark = {**DARK, **{name: pair[1] for name, pair in LINES.items()}}
    regimes = "\n".join(f".{name} {{ fill: {c}; --swatch: {c}; }}" for name, c in REGIMES.items())
    return (
        f":root {{ color-scheme: light dark; {_declared(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_declared(dark)} }} }}\n{regimes}\n"
    )


def _declared(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
