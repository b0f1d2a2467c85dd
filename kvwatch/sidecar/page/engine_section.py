"""One engine in full: regimes, charts in words, the score with its parts, lengths, unknowns, configuration."""

from __future__ import annotations

from collections.abc import Iterator

from kvwatch.core.export import report
from kvwatch.core.export.findings import lifecycles
from kvwatch.core.judgement.derive import pressure
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, QUANTILES, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.judgement.symptoms import Verdict
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.page.chart_data import Lately, lately
from kvwatch.sidecar.page.markup import e, ident, number, percent, place
from kvwatch.sidecar.page.ribbon import bar, ribbon
from kvwatch.text.evidence import evidence_label, format_value
from kvwatch.text.numbers import NOTHING, format_duration

_TTFT = LATENCIES["time_to_first_token_seconds"]
#: The parts of the score with their weights, which `pressure` has.
_PARTS = (
    ("occupancy", pressure(1, 0, 0), "how full the cache was for nine tenths of the minute"),
    ("queueing", pressure(0, 1, 0), "share of the minute in which requests waited for the cache"),
    ("preemption", pressure(0, 0, 1), "preemptions among preemptions and finished requests"),
)
_LENGTHS = (("prompt", LENGTHS["request_prompt_tokens"]), ("generated", LENGTHS["request_generation_tokens"]))
_MINUTES = ("when", "regime", "KV usage", "running", "waiting", "preemptions")


def details(state: State, one: EngineState, now: float, *, opened: bool) -> Iterator[str]:
    """An engine, to be folded away. `now` is monotonic."""
    key, found = one.key, lately(state, one, now)
    id_ = ident("engine", *key)
    yield f'<details class="engine" id="{id_}"{" open" if opened else ""}>'
    yield f"<summary><h3>{e(key.model_name)} / engine {e(key.engine)} <small>{e(one.regime)}</small></h3></summary>"
    yield f"<h4>Regimes, last {format_duration(found.span_s)}</h4>"
    yield from ribbon(found.runs(), found.span_s, [now - at for at in found.restarts])
    yield from _charts(state, one, found, now)
    yield '<div class="columns">'
    yield from _score(one, known=report.seconds_unseen(state, one, now) is None)
    yield from _lengths(state, one)
    yield "</div>"
    yield from _by_minute(found, one.key)
    yield from _untold(state, one)
    yield from _configuration(state, one)
    yield "</details>"


def _charts(state: State, one: EngineState, found: Lately, now: float) -> Iterator[str]:
    unseen = report.seconds_unseen(state, one, now)
    gone = f"not scraped for {format_duration(unseen)}" if unseen is not None else ""

    def told(name: str, value: str) -> str:
        """A derived number in words, or why there is none, or why nobody should trust it."""
        derived = one.derived
        if gone or name in derived.unknown:
            return gone or f"not known: {derived.unknown[name]}"
        doubt = f" (not trusted: {derived.untrusted[name]})" if name in derived.untrusted else ""
        return f"{'≥ ' if name in derived.at_least else ''}{value}{doubt}"

    def ttft(q: float) -> str:
        name = percentile_name(_TTFT, q)
        return f"p{100 * q:g} {told(name, format_duration(one.derived.get(name) or 0.0))}"

    known = percentile_name(_TTFT, QUANTILES[0]) in one.derived.values and not gone
    first = ", ".join(map(ttft, QUANTILES)) if known else told(percentile_name(_TTFT, QUANTILES[0]), "")
    # What the charts hold and do not ask for again: kvwatch tells how far it goes back, and where a line ends.
    shift = report.wall_offset(state) or 0.0
    since = f"{found.rows[0].t + shift:.3f}" if found.rows else ""
    restarts = " ".join(f"{at + shift:.3f}" for at in found.restarts)
    hits = told("prefix_cache_hit_ratio", percent(one.derived.get("prefix_cache_hit_ratio")))
    key = one.key
    yield (
        f'<div class="charts" data-target="{e(key.target)}" data-model="{e(key.model_name)}"'
        f' data-engine="{e(key.engine)}" data-full="{found.full:g}" data-gap="{found.gap_s:g}"'
        f' data-span="{found.span_s:g}" data-since="{since}" data-restarts="{restarts}">'
    )
    for id_, title, words in (
        ("usage", "KV usage", found.usage()),
        ("queue", "Requests", found.queue()),
        ("preemptions", "Preemptions", found.preemptions()),
        ("hits", "Prefix hit ratio", f"over 5 minutes: {hits}"),
        ("ttft", "Time to first token", f"over 5 minutes: {first}"),
    ):
        yield (
            f'<figure class="chart"><figcaption><b>{title}</b> <span>{e(words)}</span></figcaption>'
            f'<div class="plot" data-chart="{id_}" data-keep="" role="img"'
            f' aria-label="{title}, last {format_duration(found.span_s)}: {e(words)}"></div>'
            f'<div class="key" data-keep=""></div></figure>'
        )
    yield "</div>"


def _score(one: EngineState, *, known: bool) -> Iterator[str]:
    """The cache-pressure score and what it is made of."""
    derived = one.derived.get

    def told(name: str) -> float | None:
        return derived(name) if known else None

    yield "<section><h4>Cache-pressure score, last minute</h4>"
    score = told("cache_pressure_score")
    why = "" if score is not None else one.derived.unknown.get("cache_pressure_score", "not scraped")
    yield f'<p class="score">{number(score, 2)} <small>of 1{e(f"; not known: {why}" if why else "")}</small></p>'
    yield '<div class="scroll"><table class="facts"><thead><tr><th scope="col">part</th><th scope="col">is</th>'
    yield '<th scope="col">weighs</th><th scope="col">adds</th></tr></thead><tbody>'
    for part, weight, meaning in _PARTS:
        value = told(f"cache_pressure_{part}_ratio")
        adds = None if value is None else value * weight
        yield f'<tr title="{meaning}"><th scope="row">{part}</th><td>{bar(value, part)} {percent(value)}</td>'
        yield f"<td>{weight:g}</td><td>{number(adds, 2)}</td></tr>"
    yield "</tbody></table></div></section>"


def _lengths(state: State, one: EngineState) -> Iterator[str]:
    """How long requests were in the last hour, against what the server takes."""
    derived = one.derived
    most = (state.facts.max_model_len or {}).get(one.key.model_name) if state.facts else None
    longest = most or one.snapshot.config.max_model_len
    yield "<section><h4>Lengths of finished requests, last hour, tokens</h4>"
    median = percentile_name(TOTAL_LENGTH, QUANTILES[0])
    known = median in derived.values
    if not known:
        yield f"<p>Not known: {e(derived.unknown.get(median, 'not scraped'))}.</p>"
    else:
        heads = "".join(f'<th scope="col">p{100 * q:g}</th>' for q in QUANTILES)
        yield '<div class="scroll"><table class="facts"><thead><tr><th scope="col">part</th>'
        yield f"{heads}</tr></thead><tbody>"
        for word, name in (*_LENGTHS, ("together", TOTAL_LENGTH)):
            values = [(percentile_name(name, q), derived.get(percentile_name(name, q))) for q in QUANTILES]
            cells = "".join(
                f"<td>{'≥ ' if of in derived.at_least else ''}{number(value)}"
                f"{bar(value / longest if value is not None and longest else None, 'length')}</td>"
                for of, value in values
            )
            yield f'<tr><th scope="row">{word}</th>{cells}</tr>'
        yield "</tbody></table></div>"
    if longest:
        bars = "; the bars are shares of that" if known else ""
        yield f"<p>The server takes requests of up to {number(longest)} tokens{bars}.</p>"
    yield "</section>"


def _by_minute(found: Lately, key: EngineKey) -> Iterator[str]:
    """What the charts show, as a table."""
    heads = "".join(f'<th scope="col">{head}</th>' for head in _MINUTES)
    yield "<details><summary>The same as a table, by minute</summary>"
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="By minute, {place(key)}">'
    yield f'<table class="minutes"><thead><tr>{heads}</tr></thead><tbody>'
    for first, *rest in found.by_minute():
        yield f'<tr><th scope="row">{e(first)}</th>{"".join(f"<td>{e(cell)}</td>" for cell in rest)}</tr>'
    yield "</tbody></table></div><p>Means of each minute; preemptions are counted.</p></details>"


def _untold(state: State, one: EngineState) -> Iterator[str]:
    """What can't be told of an engine, and why, equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for key, name, life in lifecycles(state):
        if key == one.key and life.verdict is Verdict.UNKNOWN:
            reasons.setdefault(life.reason, []).append(name)
    for name, why in one.derived.unknown.items():
        reasons.setdefault(why, []).append(name)
    for name, why in one.snapshot.missing.items():
        reasons.setdefault(why, []).append(name)
    for name, why in one.snapshot.caveats.items():
        reasons.setdefault(f"with care: {why}", []).append(name)
    count = sum(map(len, reasons.values()))
    if not count:
        return
    yield f"<details><summary>What can't be told, and why ({count})</summary><dl>"
    for why, names in reasons.items():
        yield f"<dt>{' '.join(f'<code>{e(name)}</code>' for name in names)}</dt><dd>{e(why)}</dd>"
    yield "</dl></details>"


def _configuration(state: State, one: EngineState) -> Iterator[str]:
    """What the watched vLLM says of itself."""
    known = {
        "version": state.facts.version if state.facts else None,
        "engine_generation": one.snapshot.generation,
        "longest_request_tokens": (state.facts.max_model_len or {}).get(one.key.model_name)
        if state.facts
        else None,
        "kv_cache_capacity_tokens": one.derived.get("kv_cache_capacity_tokens"),
    } | report.config(one.snapshot.config)
    yield "<details><summary>Configuration of this vLLM</summary><dl>"
    for name, value in known.items():
        words = evidence_label(name) or name
        yield f"<div><dt>{e(words)}</dt><dd>{e(NOTHING if value is None else format_value(name, value))}</dd></div>"
    yield "</dl><p>A dash: this vLLM does not say.</p></details>"
