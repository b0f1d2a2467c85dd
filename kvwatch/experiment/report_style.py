"""How the report looks, light and dark, on screen and on paper.

Runs have colours that colour-blind people can tell apart (Okabe and Ito, 2008), and dashes besides. Every text colour
has a contrast of at least 4.5 to its paper.
"""

from __future__ import annotations

_RUNS = (
    ("#0072b2", "none"),
    ("#d55e00", "none"),
    ("#009e73", "6 3"),
    ("#cc79a7", "2 3"),
    ("#e69f00", "9 3 2 3"),
)
_REGIMES = {
    "idle": "#c9ced4",
    "flowing": "#56b4a0",
    "full": "#e6c229",
    "kv_limited": "#d1495b",
    "sequence_limited": "#5b7fc7",
    "prefill_limited": "#8e6bbf",
    "deferred": "#b07d4f",
    "stalled": "#3b3b3b",
    "unknown": "#9aa3ab",
    "down": "#000000",
}
_LIGHT = (
    "--ink: #1b1f24; --dim: #5b6570; --paper: #fff; --line: #d6dbe1; --band: #eef1f4; --good: #1a7f4b;"
    " --bad: #b42318; --warn: #8f5400; --plain: #1f5fa8;"
)
_DARK = (
    "--ink: #e4e8ec; --dim: #98a3ae; --paper: #14181c; --line: #343b43; --band: #20262c; --good: #6bd49b;"
    " --bad: #ff8b80; --warn: #f2b45a; --plain: #7fb8f5;"
)
_RULES = """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0; }
main, footer { max-width: 68rem; margin: 1.5rem auto; padding: 0 1rem; }
footer, .dim, figcaption { color: var(--dim); }
h1 { font-size: 1.35rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; }
section { border-left: 4px solid var(--line); padding-left: 1rem; margin: 1.2rem 0; } section h2 { margin: 0; }
section.better { border-color: var(--good); } section.worse, section.better-and-worse { border-color: var(--bad); }
.better, .better b { color: var(--good); } .worse, .worse b { color: var(--bad); }
section.better, section.worse { color: var(--ink); }
.higher, .lower { color: var(--plain); }
section.better li b, section.worse li b, section.better p b, section.worse p b { color: inherit; }
ul { padding-left: 1.2rem; } li, td, th, p { overflow-wrap: anywhere; }
.caution { margin: .3rem 0; } .caution.warning > b { color: var(--warn) !important; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; overflow-wrap: normal; } table th { font-weight: 400; }
th:first-child, .word { text-align: left; } td.word { padding-left: .4rem; white-space: nowrap; }
.wide td, .wide tbody th { white-space: nowrap; } .wide thead th { vertical-align: bottom; max-width: 9rem; }
.wide .differs td { white-space: normal; }
tr.group th { padding-top: .9rem; color: var(--dim); }
tr.headline th, tr.headline td.word, tr.differs, tr.differs th { font-weight: 600; }
figure { margin: .6rem 0 1.2rem; } svg { width: 100%; max-width: 46rem; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--dim); } .grid { stroke: var(--line); } .band { fill: var(--band); }
.run { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.bar { stroke: var(--dim); stroke-width: 2; } .dot { fill: var(--dim); }
.bar.better { stroke: var(--good); } .dot.better { fill: var(--good); }
.bar.worse { stroke: var(--bad); } .dot.worse { fill: var(--bad); }
.bar.higher, .bar.lower { stroke: var(--plain); } .dot.higher, .dot.lower { fill: var(--plain); }
.legend span { display: inline-block; margin-right: 1.2rem; } .legend svg { width: 30px; display: inline-block; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px; vertical-align: -1px; }
@media print { body { font-size: 11px; } figure, tr { break-inside: avoid; } }
"""
STYLE = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    + _RULES
    + "".join(
        f".run{i}, .run{i + len(_RUNS)} {{ stroke: {colour}; stroke-dasharray: {dashes}; }}\n"
        for i, (colour, dashes) in enumerate(_RUNS)
    )
    + "".join(
        f".part.{name} {{ fill: {colour}; background: {colour}; }}\n" for name, colour in _REGIMES.items()
    )
)
