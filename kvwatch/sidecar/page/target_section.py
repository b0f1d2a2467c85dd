"""One server: how the scraping goes, and its engines in a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.export.report import gpus, seconds_unseen
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.page.markup import e, ident, link, number, percent, since
from kvwatch.text.numbers import NOTHING, format_duration

_COLUMNS = (
    *("model", "engine", "regime", "finding"),
    *("KV usage", "running", "waiting", "KV demand", "pressure score"),
)


def target(
    state: State, now: float, *, unfolded: Collection[EngineKey] = (), shown: EngineKey | None = None
) -> Iterator[str]:
    """The head of a server's section. `now` is monotonic. The rows of engines that are `unfolded` below lead there,
    others to a page of their own; `shown` is the engine whose page this is."""
    yield f"<h2>{e(state.target)}</h2>{_health(state, now)}"
    if state.engines:
        yield '<table class="engines"><thead><tr>'
        yield "".join(f'<th scope="col">{head}</th>' for head in _COLUMNS) + "</tr></thead><tbody>"
        found: defaultdict[EngineKey, list[Finding]] = defaultdict(list)
        for one in findings(state):
            found[one.key].append(one)
        for key, engine in state.engines.items():
            label = e(key.model_name) or "(no name)"
            whose = f"{label}, engine {e(key.engine)}"
            there = link(key, label, whose, here=key in unfolded)
            yield '<tr aria-current="page">' if key == shown else "<tr>"
            worst = _worst(found[key], "" if shown in {None, key} else "/")
            yield _row(engine, there, worst, seconds_unseen(state, engine, now))
        yield "</tbody></table>"
    yield from _gpus(state, now)


def _health(state: State, now: float) -> str:
    if state.up is None:
        return '<p class="dim">Not scraped yet.</p>'
    if state.error is not None:
        lasts = "" if state.failing_since is None else f" for {since(state.failing_since, now)}"
        return (
            f'<p class="bad">Can\'t be scraped{e(lasts)}: {e(state.error.kind)}.'
            f" <small>{e(state.error.detail)}</small></p>"
        )
    last = state.last
    what = "asking only for what is read" if last and last.narrowed else "reading the whole page"
    how = f", every {format_duration(last.interval_s)}, {what}" if last else ""
    ago = "" if state.good_at is None else f"{since(state.good_at, now)} ago"
    failed = sum(count for kind, count in state.outcomes.items() if kind != "ok")
    lost = f"; {failed} of {sum(state.outcomes.values())} scrapes failed since the start" if failed else ""
    return f'<p class="good">Scraped <small>{e(ago + how + lost)}</small></p>'


def _row(engine: EngineState, model: str, worst: str, unseen_s: float | None) -> str:
    """The cells of a row; of an engine that is not scraped now, none of its last numbers."""
    value, derived = engine.snapshot.number, engine.derived.get
    cells: tuple[str, ...] = (
        percent(value("kv_cache_usage_ratio")),
        number(value("requests_running")),
        number(value("requests_waiting")),
        number(derived("kv_cache_demand_ratio"), 2),
        number(derived("cache_pressure_score"), 2),
    )
    regime = f'<span class="swatch {e(engine.regime)}"></span>{e(engine.regime)}'
    if unseen_s is not None:
        cells = (NOTHING,) * len(cells)
        regime += f" <small>not scraped for {e(format_duration(unseen_s))}</small>"
    words = (model, e(engine.key.engine), regime, worst)
    row = [f'<td data-name="{name}">{word}</td>' for name, word in zip(_COLUMNS, words, strict=False)]
    row += [
        f'<td class="n" data-name="{name}">{cell}</td>'
        for name, cell in zip(_COLUMNS[len(words) :], cells, strict=True)
    ]
    return f"{''.join(row)}</tr>"


def _worst(found: Sequence[Finding], page: str) -> str:
    """The first of an engine's findings, which are in order, and how many more there are; `page` tells of them."""
    if not found:
        return '<span class="dim">none</span>'
    first = found[0]
    name = f'<a href="{page}#{ident("finding", *first.key, first.symptom.id)}">{e(first.symptom.id)}</a>'
    more = f" <small>and {len(found) - 1} more</small>" if found[1:] else ""
    return f'<b class="{e(first.symptom.severity)}">{name}</b>{more}'


def _gpus(state: State, now: float) -> Iterator[str]:
    """What its GPUs do, where they are read."""
    for gpu in gpus(state, now)["gpus"]:
        parts = (
            ("SMs active", gpu["sm_active_ratio"]),
            ("memory active", gpu["dram_active_ratio"]),
            ("utilisation", gpu["utilization_ratio"]),
        )
        known = ", ".join(f"{name} {percent(value)}" for name, value in parts if value is not None)
        yield f"<p>GPU {e(gpu['gpu'])} <small>{e(known or 'nothing of its activity is read')}</small></p>"
