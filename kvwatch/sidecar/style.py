"""How the page looks, light and dark, wide and narrow: colours by name, and CSS without anything from elsewhere.

Every text colour has a contrast of at least 4.5 to its paper. On a narrow screen the rows of the table of engines
become cards, each number with its column's name before it, so that nothing is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_RULES = """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; } h3 { font-size: 1rem; margin: 0; }
h4 { font-size: inherit; margin: .5rem 0 0; }
small, th, .dim { color: var(--dim); font-weight: 400; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); }
th, td.n { white-space: nowrap; } td { overflow-wrap: normal; } td:first-child { overflow-wrap: anywhere; }
td.n { font-variant-numeric: tabular-nums; }
article { border-left: 4px solid var(--line); padding: .2rem 0 .2rem 1rem; margin: 1.2rem 0; }
article.critical { border-color: var(--critical); } article.warning { border-color: var(--warning); }
article.info { border-color: var(--info); }
article.explained { border-left-style: dotted; color: var(--dim); }
.critical b { color: var(--critical); } .warning b { color: var(--warning); } .info b { color: var(--info); }
.good { color: var(--good); } .bad { color: var(--critical); }
.fact { display: inline-block; margin-right: 1.2rem; } .fact code { color: var(--dim); }
code { font-size: .9em; } .option { white-space: nowrap; }
nav a { display: inline-block; margin-right: 1rem; } a { color: var(--info); }
p { margin: .3rem 0; } ol, ul { margin: 0 0 .3rem; padding-left: 1.5rem; }
@media (max-width: 640px) {
  body { margin: 1rem auto; }
  thead { display: none; } table, tbody { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  td { display: block; border: 0; padding: .1rem 0; }
  td::before { content: attr(data-name) " "; color: var(--dim); }
  td:first-child { grid-column: 1 / -1; }
}
"""
STYLE = (
    f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n{_RULES}"
)
