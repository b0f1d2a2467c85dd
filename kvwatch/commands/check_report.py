"""The report of `check` as text: findings first, then pending symptoms, numbers and unknown symptoms.

A healthy server gets one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvwatch.commands import terminal_text
from kvwatch.commands.check_verdict import Conclusion
from kvwatch.commands.checklist import Mark, Point
from kvwatch.commands.output import sanitize
from kvwatch.commands.terminal_layout import actions, causes, lay_out_finding, line, paragraph, table
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.history.regimes import MEANING, Regime
from kvwatch.core.judgement.advice.choose import choose
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.percentiles import LATENCIES, percentile_name
from kvwatch.core.judgement.state import EngineState
from kvwatch.core.judgement.symptoms import BY_ID
from kvwatch.core.model.outcome import REACHABLE
from kvwatch.text.numbers import NOTHING, format_number

_STYLE = {
    "fine": "bold green",
    "findings": "bold red",
    "pending": "bold yellow",
    "unknown": "bold magenta",
    Mark.LOOK: "bold yellow",
    Mark.UNKNOWN: "magenta",
    Mark.YOURS: "cyan",
    Mark.SHOWN: "green",
}
_TTFT = LATENCIES["time_to_first_token_seconds"]


def report_of(watch: Watch, url: str, found: Conclusion, *, full: bool = False) -> RenderableType:
    """The report. `full` adds the numbers of a healthy server and the details of explained findings."""
    if found.word == "fine" and not full:
        return _healthy(watch, url, found)
    scrapes = terminal_text.scrape_counts(watch.samples, watch.duration_s, watch.failures)
    return Group(
        line(found.word.capitalize(), f": {found.why}", style=_STYLE[found.word]),
        *_findings(watch, full=full),
        *((*_pending(watch, found), *_numbers(watch)) if watch.good else _unreadable(watch)),
        *(_unknown(watch) if watch.good or full else ()),
        Text(),
        line(f"{url}: {scrapes}", style="dim"),
    )


def checklist_table(points: Iterable[Point]) -> RenderableType:
    grid = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False, title="Checklist", title_justify="left"
    )
    grid.add_column("", no_wrap=True)
    grid.add_column("point", ratio=2)
    grid.add_column("what the server's data shows", ratio=3)
    grid.add_column("what only you know", ratio=3)
    for point in points:
        several = len(point.shown) > 1
        shown = [f"engine {one.key.engine}: {one.text}" if several else one.text for one in point.shown]
        mark = Text(str(point.mark), style=_STYLE[point.mark])
        grid.add_row(mark, point.title, sanitize("\n".join(shown) or "no engine is known yet"), point.yours)
    return Group(Text(), grid)


def _healthy(watch: Watch, url: str, found: Conclusion) -> RenderableType:
    engines = (watch.good or watch.state).engines.values()
    parts = [terminal_text.regime_shares(watch.regimes())]
    for one in engines:
        usage = one.snapshot.number("kv_cache_usage_ratio")
        running, waiting = (
            format_number(one.snapshot.number(name)) for name in ("requests_running", "requests_waiting")
        )
        parts.append(
            (f"engine {one.key.engine} " if len(engines) > 1 else "")
            + f"KV usage {NOTHING if usage is None else terminal_text.percent(usage)}, {running} running,"
            f" {waiting} waiting"
        )
    if unknown := len({name for _, name, _ in watch.unknown()}):
        parts.append(f"unknown symptoms: {unknown} (--all lists them)")
    return Group(line("Fine", f": {found.why} with {url} ({'; '.join(parts)})", style=_STYLE["fine"]))


def _findings(watch: Watch, *, full: bool) -> Iterator[RenderableType]:
    """The findings in order. Findings of several engines with the same actions are laid out once."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in watch.findings():
        same = one["symptom"], tuple(one["explained_by"]), tuple(action["text"] for action in one["actions"])
        groups.setdefault(same, []).append(one)
    for first, *others in groups.values():
        yield Text()
        yield lay_out_finding(first, short=bool(first["explained_by"]) and not full, same=others)


def _pending(watch: Watch, found: Conclusion) -> Iterator[RenderableType]:
    if pending := watch.pending():
        yield Text()
        yield line("Pending (the condition has not held long enough to fire; watch longer with --for):")
    for key, name in pending:
        yield line(f"  {name} on {terminal_text.place(key)}: {BY_ID[name].title}")
    if found.limited:
        yield Text()
        yield line("Waiting requests:")
    for one in found.limited:
        yield line(f"  {terminal_text.place(one.key)}: {one.text}")


def _unreadable(watch: Watch) -> Iterator[RenderableType]:
    """Causes and actions for a server of which no page could be read."""
    row = BY_ID["signals_missing" if watch.state.failure in REACHABLE else "target_down"]
    yield Text()
    yield from causes(row.causes)
    evidence = {"failure": str(watch.state.error.kind)} if watch.state.error else {}
    yield from actions(choose(row.levers, row.do_not, Situation(row.id, evidence)))


def _numbers(watch: Watch) -> Iterator[RenderableType]:
    """Time per regime, the key numbers with a column for each engine, and the GPUs."""
    engines = list((watch.good or watch.state).engines.values())
    regimes = watch.regimes()
    yield Text()
    yield line(f"Time per regime: {terminal_text.regime_shares(regimes)}")
    for regime in terminal_text.main_regimes(regimes):
        yield paragraph(f"{regime}: {MEANING[Regime(regime)]}", style="dim")
    if engines:
        yield Text()
        models = len({one.key.model_name for one in engines}) > 1
        grid = table(
            "",
            *(
                sanitize(f"{one.key.model_name if models else ''} engine {one.key.engine}".lstrip())
                for one in engines
            ),
        )
        grid.add_row("regime now", *(str(one.regime) for one in engines))
        for row in zip(*(_engine_numbers(one) for one in engines), strict=True):
            grid.add_row(row[0][0], *(sanitize(value) for _, value in row))
        yield grid
    for gpu in report.gpus(watch.state)["gpus"]:
        yield line(f"GPU {gpu['gpu']:<22} {_gpu_numbers(gpu)}")


def _gpu_numbers(gpu: Mapping[str, Any]) -> str:
    parts = (
        ("SMs active", gpu["sm_active_ratio"]),
        ("memory active", gpu["dram_active_ratio"]),
        ("utilisation", gpu["utilization_ratio"]),
    )
    known = ", ".join(f"{name} {terminal_text.percent(value)}" for name, value in parts if value is not None)
    return known or "activity unknown"


def _engine_numbers(state: EngineState) -> list[tuple[str, str]]:
    """The key numbers of an engine, each with its value or the reason why it is unknown."""
    engine = report.engine(state)
    signals, derived = engine["signals"], engine["derived"]

    def number(name: str, unit: str = "") -> str:
        value = derived.get(name, signals.get(name))
        if value is None:
            return f"unknown: {engine['unknown'].get(name) or engine['missing'].get(name) or 'not exposed'}"
        text = terminal_text.percent(value) if unit == "%" else f"{format_number(value)}{unit}"
        doubt = f" (not trusted: {engine['untrusted'][name]})" if name in engine["untrusted"] else ""
        return f"{'≥ ' if name in engine['at_least'] else ''}{text}{doubt}"

    return [
        ("KV usage", number("kv_cache_usage_ratio", "%")),
        ("requests", f"{number('requests_running')} running, {number('requests_waiting')} waiting"),
        ("KV demand", f"{number('kv_cache_demand_ratio')} (1 is exactly full)"),
        ("cache-pressure score", number("cache_pressure_score")),
        *(
            (f"  {part}", number(f"cache_pressure_{part}_ratio"))
            for part in ("occupancy", "queueing", "preemption")
        ),
        ("prefix hit rate", number("prefix_cache_hit_ratio", "%")),
        ("prompt tokens", number("prompt_tokens_per_second", "/s")),
        ("generated tokens", number("generation_tokens_per_second", "/s")),
        *((f"TTFT p{100 * q:g}", number(percentile_name(_TTFT, q), " s")) for q in (0.5, 0.95)),
    ]


def _unknown(watch: Watch) -> Iterator[RenderableType]:
    """The unknown symptoms with reasons; with the engines if there are several."""
    engines: dict[tuple[str, str], list[str]] = {}
    for key, name, reason in watch.unknown():
        engines.setdefault((name, reason), []).append(terminal_text.place(key))
    if engines:
        yield Text()
        yield line("Unknown:")
    for (name, reason), where in engines.items():
        on = f" on {', '.join(where)}" if len(watch.state.engines) > 1 else ""
        yield line(f"  {name}{on}: {reason}", style="dim")
