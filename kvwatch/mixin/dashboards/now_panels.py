"""The first row of a server's dashboard: what is wrong now, since when, where."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, GOOD, GREY, LOOK, REGIME
from kvwatch.mixin.dashboards.common import about, step, symptom_columns
from kvwatch.mixin.dashboards.elements import Column, Panel, PanelKind, PanelRow, Query
from kvwatch.mixin.dashboards.queries import (
    ENGINE,
    QueryScope,
    evidence,
    firing,
    highest,
    regime_share,
    total,
)
from kvwatch.mixin.render_options import Options


def row(scope: QueryScope, options: Options) -> PanelRow:
    """No higher than a laptop's screen."""
    return PanelRow("What is wrong now?", (*_state(scope), *_why(scope, options), *_where(scope)))


def regimes(scope: QueryScope, *, width: int) -> Panel:
    """Time per regime, stacked."""
    return Panel(
        "Why do requests wait?",
        PanelKind.STACK,
        "percentunit",
        (Query(regime_share(scope), "{{regime}}"),),
        "Share of the time in each regime, every sample of kvwatch counted, so that nothing is lost between"
        " two scrapes of Prometheus. kv_limited: they wait for the cache (more KV memory, shorter requests)."
        " sequence_limited: for a slot (raise --max-num-seqs). prefill_limited: for prefill (prefix reuse,"
        " replicas). deferred: for LoRA, a KV transfer or a grammar. flowing and full: nobody waits.",
        colours=REGIME,
        high=1,
        absent="No kvwatch watched this server then",
        width=width,
    )


def _state(scope: QueryScope) -> tuple[Panel, ...]:
    def part(name: str) -> str:
        return highest(scope(f"cache_pressure_{name}_ratio"))

    return (
        Panel(
            "Regime now",
            PanelKind.STAT,
            "none",
            (Query(total(f"{scope.loose('regime')} == 1", "regime"), "{{regime}}"),),
            "What holds requests back at this moment, with the number of engines of which that is true. A"
            " regime ending in _limited says what they wait for; down and unknown are not fine, they are not"
            " known.",
            width=6,
            height=4,
            colours=REGIME,
            names=True,
            absent="No kvwatch watches this",
        ),
        Panel(
            "Cache-pressure score",
            PanelKind.STAT,
            "none",
            (Query(highest(scope("cache_pressure_score")), "worst engine"),),
            "0 to 1, of the worst engine, over the last minute: 0.5 × occupancy + 0.3 × queueing + 0.2 ×"
            " preemption. A full cache with nothing waiting never exceeds 0.5; above it requests wait for the"
            " cache. Not told where one of its parts is unknown. Red from"
            f" {about('engine_restarted.pressure')}.",
            width=4,
            height=4,
            steps=(step("engine_restarted.pressure"),),
            decimals=2,
            absent="Unknown: a part of it is missing",
        ),
        Panel(
            "What the score is made of",
            PanelKind.BARS,
            "percentunit",
            tuple(Query(part(name), name) for name in ("occupancy", "queueing", "preemption")),
            "Each part of the score, 0 to 1, highest over engines. Occupancy alone: a full cache that fits."
            " Queueing: share of the minute with requests that wait for the cache. Preemption: work that is"
            f" thrown away and done again; full at {about('score.preemption_full')} of requests.",
            width=6,
            height=4,
            base="#56B4E9",
            high=1,
            absent="Unknown",
        ),
        Panel(
            "KV cache, highest in a minute",
            PanelKind.STAT,
            "percentunit",
            (Query(highest(scope("kv_cache_usage_peak_1m_ratio")), "peak"),),
            "Highest KV usage of the last minute in any engine, seen by every scrape of kvwatch. Cached"
            " blocks that nobody holds count as free, so an idle server shows 0 with a warm cache. Full is no"
            f" fault while nothing waits. The mark is {about('regime.full_usage')}.",
            width=4,
            height=4,
            steps=(step("regime.full_usage", LOOK),),
            decimals=0,
        ),
        Panel(
            "Requests",
            PanelKind.STAT,
            "none",
            (
                Query(total(scope("requests_running")), "running"),
                Query(total(scope("requests_waiting")), "waiting"),
            ),
            "Requests in the batch and in the queue now, over all chosen engines. A queue alone says nothing"
            " of its cause: the regime does.",
            width=4,
            height=4,
            base=GREY,
            names=True,
        ),
    )


def _why(scope: QueryScope, options: Options) -> tuple[Panel, ...]:
    return (
        Panel(
            "What fires?",
            PanelKind.TABLE,
            "none",
            (Query(firing(scope), "firing"),),
            "Symptoms that fire now; a click on one opens its runbook. Act on a cause: what is an effect of"
            " another goes away with it, and does not page.",
            width=9,
            columns=symptom_columns(options, server=False),
            sort="why",
            absent="Nothing fires (but down and unknown are not fine)",
        ),
        Panel(
            "By which numbers?",
            PanelKind.TABLE,
            "short",
            (Query(evidence(scope), "is"),),
            "The evidence for each cause that fires, in the units that the names say, at the moment it was"
            " last judged. What is no number has its text instead.",
            width=7,
            columns=(
                Column("symptom", width=110),
                Column("evidence"),
                Column("is", width=70),
                Column("text", width=70),
            ),
            sort="symptom",
            absent="Nothing fires",
        ),
        regimes(scope, width=8),
    )


def _where(scope: QueryScope) -> tuple[Panel, ...]:

    def each(name: str) -> str:
        return highest(scope(name), ENGINE)

    return (
        Panel(
            "Worst engines",
            PanelKind.TABLE,
            "none",
            (
                Query(each("cache_pressure_score"), "score"),
                Query(each("kv_cache_demand_ratio"), "demand"),
                Query(each("kv_cache_usage_ratio"), "usage"),
                Query(each("requests_waiting"), "waiting"),
                Query(each("last_progress_age_seconds"), "still for"),
            ),
            "One line per engine, the worst first. Engines of one server that differ point to routing. Still"
            f" for: since when nothing moved; with requests inside, {about('regime.stalled_after')} s of it is"
            " a stall, whatever /health says.",
            width=12,
            height=6,
            columns=(
                Column("target", "server"),
                Column("model_name", "model", width=120),
                Column("engine", width=70),
                Column("score", decimals=2, width=70, steps=(step("engine_restarted.pressure"),)),
                Column("demand", decimals=2, width=80, steps=(step("regime.demand"),)),
                Column(
                    "usage",
                    unit="percentunit",
                    decimals=0,
                    width=80,
                    steps=(step("regime.full_usage", LOOK),),
                ),
                Column("waiting", width=80),
                Column("still for", unit="s", decimals=0, width=90, steps=(step("regime.stalled_after"),)),
            ),
            sort="score",
            absent="No engine answers",
        ),
        Panel(
            "Since when?",
            PanelKind.TIMELINE,
            "none",
            (Query(highest(f"{scope.loose('symptom_firing')} == 1", "symptom"), "{{symptom}}"),),
            "When each symptom fired, on any of the chosen engines. What began first is more often the cause;"
            " what is empty did not fire.",
            width=12,
            height=6,
            base=ACT,
            words={"1": ("firing", ACT), "0": ("clear", GOOD)},
            absent="Nothing fired",
        ),
    )
