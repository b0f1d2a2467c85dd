"""What `check` says to people: what is wrong first, then the numbers; where nothing is, one line.

Made of what `rich` draws: tables that fit the terminal, and colours where they can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvwatch.commands import checklist, terminal_text
from kvwatch.commands.check_verdict import Conclusion
from kvwatch.commands.checklist import Mark, Point
from kvwatch.commands.output import shown
from kvwatch.commands.watch import Watch
from kvwatch.core.export import report
from kvwatch.core.history.regimes import MEANING, Regime
from kvwatch.core.judgement.percentiles import LATENCIES, percentile_name
from kvwatch.core.judgement.state import EngineState
from kvwatch.core.judgement.symptoms import BY_ID
from kvwatch.core.model.outcome import REACHABLE
from kvwatch.text.evidence import evidence_rows, evidence_title, format_value
from kvwatch.text.numbers import NOTHING, format_number

TITLES = {"fine": "Fine", "findings": "Findings", "pending": "On the way", "unknown": "Unknown"}
_LOOKS = {
    "critical": "bold red",
    "warning": "bold yellow",
    "info": "bold blue",
    "fine": "bold green",
    "findings": "bold red",
    "pending": "bold yellow",
    "unknown": "bold magenta",
    Mark.LOOK: "bold yellow",
    Mark.UNKNOWN: "magenta",
    Mark.YOURS: "cyan",
    Mark.SHOWN: "green",
}
_MENTIONED = 4
"""Numbers of the evidence that are told of an engine that has what another has."""
_TTFT = LATENCIES["time_to_first_token_seconds"]


def report_of(watch: Watch, url: str, found: Conclusion, *, everything: bool = False) -> RenderableType:
    """The report. With `everything` the numbers are told though nothing is wrong, and explained findings in full."""
    if found.word == "fine" and not everything:
        return _fine(watch, url, found)
    return Group(
        _line(TITLES[found.word], f": {found.why}", look=_LOOKS[found.word]),
        *_findings(watch, everything=everything),
        *(_on_the_way(watch, found) if watch.good else ()),
        *(_numbers(watch) if watch.good else _never_read(watch)),
        *(_unknown(watch) if watch.good or everything else ()),
        Text(),
        _line(
            f"{url}: {terminal_text.scrapes(watch.samples, watch.duration_s, watch.failures)}", "", look="dim"
        ),
    )


def checklist_of(points: Iterable[Point]) -> RenderableType:
    """The checklist as a table."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False, title="Checklist", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    table.add_column("point", ratio=2)
    table.add_column("what the server's data shows", ratio=3)
    table.add_column("what only you know", ratio=3)
    for mark, title, said, yours in checklist.lines(points):
        table.add_row(Text(str(mark), style=_LOOKS[mark]), shown(title), shown("\n".join(said)), shown(yours))
    return Group(Text(), table)


def _line(head: str, rest: str, *, look: str) -> Text:
    """A line that is not broken, so that one can search for what it says."""
    return Text.assemble((shown(head), look), shown(rest), no_wrap=True, overflow="ignore")


def _fine(watch: Watch, url: str, found: Conclusion) -> RenderableType:
    """All that there is to say of a server with which nothing is wrong."""
    engines = (watch.good or watch.state).engines.values()
    several = len(engines) > 1
    told = "; ".join(
        f"{f'engine {one.key.engine} ' if several else ''}KV usage {_percent(one, 'kv_cache_usage_ratio')},"
        f" {_count(one, 'requests_running')} running, {_count(one, 'requests_waiting')} waiting"
        for one in engines
    )
    untold = len({name for _, name, _ in watch.unknown()})
    more = f"; {untold} symptoms could not be told, --all says why" if untold else ""
    seen = f"{terminal_text.shares(watch.regimes())}; {told}{more}"
    return Group(_line("Fine", f": {found.why} with {url} ({seen})", look=_LOOKS["fine"]))


def _percent(one: EngineState, signal: str) -> str:
    value = one.snapshot.number(signal)
    return NOTHING if value is None else f"{value:.0%}"


def _count(one: EngineState, signal: str) -> str:
    return format_number(one.snapshot.number(signal))


def _findings(watch: Watch, *, everything: bool) -> Iterator[RenderableType]:
    """What fires, in order; what several engines have is told in full of the first, and of the others in a line."""
    found = watch.findings()
    told: set[tuple[Any, ...]] = set()
    for one in found:
        same = _alike(one)
        if same in told:
            continue
        told.add(same)
        others = [other for other in found if other is not one and _alike(other) == same]
        where = _where(one)
        yield Text()
        yield _line(one["severity"].upper(), f": {one['title']}", look=_LOOKS[one["severity"]])
        yield _indented(
            f"{one['symptom']} on {where}, firing for {terminal_text.clock(one['firing_seconds'])}",
            look="dim",
        )
        if one["explained_by"]:
            yield _indented(f"Explained by {', '.join(one['explained_by'])}: act on that first.")
        if one["explained_by"] and not everything:
            if others:
                yield _indented(f"The same on {', '.join(map(_where, others))}.")
            continue
        yield _indented(one["meaning"])
        yield _indented("What to do, in this order:", look="bold")
        yield _listed([f"{i}." for i, _ in enumerate(one["actions"], 1)], one["actions"])
        yield _indented("Evidence:", look="bold")
        yield Padding(_evidence(one["evidence"]), (0, 0, 0, 4))
        yield _indented("Likely causes:", look="bold")
        yield _listed(["-"] * len(one["causes"]), one["causes"])
        if others:
            yield _indented("The same, and the same to do:", look="bold")
        for other in others:
            some = terminal_text.evidence(other["evidence"], _MENTIONED)
            yield Padding(Text(shown(f"{_where(other)}: {some}")), (0, 0, 0, 4))


def _alike(found: Mapping[str, Any]) -> tuple[Any, ...]:
    """What findings of several engines have in common, if they are to be told together."""
    return found["symptom"], tuple(found["explained_by"]), tuple(found["actions"])


def _where(found: Mapping[str, Any]) -> str:
    return "/".join(found[part] for part in ("target", "model_name", "engine") if found.get(part))


def _indented(words: str, *, look: str = "") -> Padding:
    return Padding(Text(shown(words), style=look), (0, 0, 0, 2))


def _listed(signs: Iterable[str], lines: Iterable[str]) -> RenderableType:
    """Lines as a list, each behind its sign."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for sign, line in zip(signs, lines, strict=True):
        table.add_row(sign, Text(shown(line)))
    return Padding(table, (0, 0, 0, 4))


def _evidence(evidence: Mapping[str, Any]) -> Table:
    """The numbers that were judged, and what they were held against."""
    table = _table("what", "is", "held against")
    for title, judged, limit in evidence_rows(evidence):
        cells = (format_value(title, one[1]) if one else "" for one in (judged, limit))
        table.add_row(shown(evidence_title(title)), *map(shown, cells))
    return table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _on_the_way(watch: Watch, found: Conclusion) -> Iterator[RenderableType]:
    pending = watch.pending()
    if pending:
        yield Text()
        sure = "they hold already, but not yet for as long as it takes to be sure; watch longer with --for"
        yield _line("", f"Pending ({sure}):", look="")
        for key, name in pending:
            yield _line("", f"  {name} on {terminal_text.engine(key)}: {BY_ID[name].title}", look="")
    if found.limited:
        yield Text()
        yield Text("On the way:")
        for limited in found.limited:
            yield _line("", f"  {terminal_text.engine(limited.key)}: {limited.text}", look="")


def _never_read(watch: Watch) -> Iterator[RenderableType]:
    """What to do about a server that gave no page that could be read, which makes all else unknown."""
    row = BY_ID["signals_missing" if watch.state.failure in REACHABLE else "target_down"]
    yield Text()
    yield _indented("Likely causes:", look="bold")
    yield _listed(["-"] * len(row.causes), row.causes)
    yield _indented("What to do, in this order:", look="bold")
    yield _listed([f"{i}." for i, _ in enumerate(row.actions, 1)], [one.text for one in row.actions])


def _numbers(watch: Watch) -> Iterator[RenderableType]:
    """Time per regime, the key numbers of each engine in a column of its own, and the GPUs."""
    engines = list((watch.good or watch.state).engines.values())
    yield Text()
    yield _line("", f"Time per regime: {terminal_text.shares(watch.regimes())}", look="")
    for regime in terminal_text.longest(watch.regimes()):
        yield _indented(f"{regime}: {MEANING[Regime(regime)]}", look="dim")
    if engines:
        yield Text()
        models = len({one.key.model_name for one in engines}) > 1
        table = _table("", *(shown(_named(one, models=models)) for one in engines))
        table.add_row("regime now", *(str(one.regime) for one in engines))
        for row in zip(*(list(_told(report.engine(one))) for one in engines), strict=True):
            table.add_row(row[0][0], *(shown(value) for _, value in row))
        yield table
    for gpu in report.gpus(watch.state)["gpus"]:
        yield _line("", f"GPU {gpu['gpu']:<22} {_activity(gpu)}", look="")


def _named(one: EngineState, *, models: bool) -> str:
    """An engine within its server; with its model where there are several."""
    return " ".join((*((one.key.model_name,) if models else ()), "engine", one.key.engine))


def _activity(gpu: Mapping[str, Any]) -> str:
    parts = (
        ("SMs active", gpu["sm_active_ratio"]),
        ("memory active", gpu["dram_active_ratio"]),
        ("utilisation", gpu["utilization_ratio"]),
    )
    known = ", ".join(f"{name} {value:.0%}" for name, value in parts if value is not None)
    return known or "nothing of its activity is read"


def _told(engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The numbers that people ask for first, each with its value or why there is none."""
    signals, derived = engine["signals"], engine["derived"]

    def told(name: str, unit: str = "") -> str:
        value = derived.get(name, signals.get(name))
        if value is None:
            return f"unknown: {engine['unknown'].get(name) or engine['missing'].get(name) or 'not exposed'}"
        more = "≥ " if name in engine["at_least"] else ""
        doubt = f" (not trusted: {engine['untrusted'][name]})" if name in engine["untrusted"] else ""
        return f"{more}{value:.0%}{doubt}" if unit == "%" else f"{more}{format_number(value)}{unit}{doubt}"

    yield "KV usage", told("kv_cache_usage_ratio", "%")
    yield "requests", f"{told('requests_running')} running, {told('requests_waiting')} waiting"
    yield "KV demand", f"{told('kv_cache_demand_ratio')} (1 is exactly full)"
    yield "cache-pressure score", told("cache_pressure_score")
    for part in ("occupancy", "queueing", "preemption"):
        yield f"  {part}", told(f"cache_pressure_{part}_ratio")
    yield "prefix hit ratio", told("prefix_cache_hit_ratio", "%")
    yield "prompt tokens", told("prompt_tokens_per_second", "/s")
    yield "generated tokens", told("generation_tokens_per_second", "/s")
    for quantile in (0.5, 0.95):
        yield f"TTFT p{quantile * 100:g}", told(percentile_name(_TTFT, quantile), " s")


def _unknown(watch: Watch) -> Iterator[RenderableType]:
    """What could not be told and why; of which engines, where there are several."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for key, name, reason in watch.unknown():
        by_reason.setdefault((name, reason), []).append(terminal_text.engine(key))
    if by_reason:
        yield Text()
        yield Text("Could not be told:")
    for (name, reason), where in by_reason.items():
        on = f" on {', '.join(where)}" if len(watch.state.engines) > 1 else ""
        yield _line(f"  {name}{on}: {reason}", "", look="dim")
