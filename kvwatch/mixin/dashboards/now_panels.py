"""The first row of a server's dashboard: what is wrong now, since when, where. It fits on a laptop's screen."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, GOOD, GREY, LOOK, REGIME, SKY
from kvwatch.mixin.dashboards.common import (
    firing_symptoms,
    percent_column,
    threshold_step,
    threshold_text,
    time_by_regime,
)
from kvwatch.mixin.dashboards.elements import Column, Panel, PanelRow, bars, stat, table, timeline
from kvwatch.mixin.dashboards.queries import ENGINE, QueryScope, evidence, highest, total
from kvwatch.mixin.render_options import Options


def row(scope: QueryScope, options: Options) -> PanelRow:
    where = Column("engine", width=65)
    why = (
        firing_symptoms(scope, options, size=(9, 7), where=where),
        table(
            "Evidence",
            {"value": evidence(scope)},
            "The judged numbers of each firing symptom that no other one covers. The name ends in the unit."
            " Some evidence is text instead of a number.",
            unit="short",
            size=(7, 7),
            columns=(
                Column("symptom", width=110),
                Column("evidence"),
                Column("value", width=70),
                Column("text", width=70),
            ),
            sort="symptom",
            absent="No finding",
        ),
        time_by_regime(scope, size=(8, 7)),
    )
    return PanelRow("What is wrong now?", (*_state(scope), *why, *_where(scope)))


def _state(scope: QueryScope) -> tuple[Panel, ...]:
    parts = ("occupancy", "queueing", "preemption")
    return (
        stat(
            "Regime now",
            {"{{regime}}": total(f"{scope.or_server('regime')} == 1", "regime")},
            "Why requests wait now, with the number of engines. A regime that ends in _limited names the"
            " resource that they wait for. down and unknown: no data.",
            size=(6, 4),
            colours=REGIME,
            names=True,
            absent="Not watched by any kvwatch",
        ),
        stat(
            "Cache-pressure score",
            {"worst engine": highest(scope("cache_pressure_score"))},
            "0 to 1, worst engine, over the last minute: 0.5 × occupancy + 0.3 × queueing + 0.2 × preemption. A full"
            " cache without a queue scores at most 0.5; above 0.5, requests wait for the cache or are"
            " preempted. Missing if a"
            f" part is unknown. Red at {threshold_text('engine_restarted.pressure')} and above.",
            size=(4, 4),
            steps=(threshold_step("engine_restarted.pressure"),),
            decimals=2,
            absent="Unknown: a part is missing",
        ),
        bars(
            "Parts of the score",
            {name: highest(scope(f"cache_pressure_{name}_ratio")) for name in parts},
            "Each part, 0 to 1, highest over engines. Occupancy alone: the cache is full, but requests fit."
            " Queueing: share of the minute in which requests waited for the cache. Preemption: preemptions /"
            f" (preemptions + finished requests); the part is 1 at {threshold_text('score.preemption_full')}.",
            unit="percentunit",
            size=(6, 4),
            base=SKY,
            high=1,
            absent="Unknown",
        ),
        stat(
            "Peak KV cache usage, 1 min",
            {"peak": highest(scope("kv_cache_usage_peak_1m_ratio"))},
            "Highest KV cache usage of any engine in the last minute, over all scrapes of kvwatch. Cached"
            " blocks that no request holds count as free. A full cache is healthy while no request waits."
            f" Orange at {threshold_text('regime.full_usage')} and above.",
            unit="percentunit",
            size=(4, 4),
            steps=(threshold_step("regime.full_usage", LOOK),),
            decimals=0,
        ),
        stat(
            "Requests",
            {"running": total(scope("requests_running")), "waiting": total(scope("requests_waiting"))},
            "Running and waiting requests now, over all selected engines. The regime names the cause of a"
            " queue.",
            size=(4, 4),
            base=GREY,
            names=True,
        ),
    )


def _where(scope: QueryScope) -> tuple[Panel, ...]:
    by_engine = {
        "score": "cache_pressure_score",
        "demand": "kv_cache_demand_ratio",
        "usage": "kv_cache_usage_ratio",
        "waiting": "requests_waiting",
        "no progress": "last_progress_age_seconds",
    }
    return (
        table(
            "Worst engines",
            {title: highest(scope(name), ENGINE) for title, name in by_engine.items()},
            "One line per engine, worst first. Large differences between engines of one server suggest a"
            " routing problem. No progress: time since a counter or usage last changed. If the engine has"
            f" requests, {threshold_text('regime.stalled_after', ' s')} without progress is a stall, even if"
            " /health returns 200.",
            size=(12, 6),
            columns=(
                Column("target", "server"),
                Column("model_name", "model", width=120),
                Column("engine", width=70),
                Column("score", decimals=2, width=70, steps=(threshold_step("engine_restarted.pressure"),)),
                Column("demand", decimals=2, width=80, steps=(threshold_step("regime.demand"),)),
                percent_column("usage", 80, threshold_step("regime.full_usage", LOOK)),
                Column("waiting", width=80),
                Column(
                    "no progress",
                    unit="s",
                    decimals=0,
                    width=90,
                    steps=(threshold_step("regime.stalled_after"),),
                ),
            ),
            sort="score",
            absent="No engine is reachable",
        ),
        timeline(
            "Symptoms over time",
            {"{{symptom}}": highest(f"{scope.or_server('symptom_firing')} == 1", "symptom")},
            "When each symptom fired on any selected engine. The first one is often the cause.",
            size=(12, 6),
            base=ACT,
            words={"1": ("firing", ACT), "0": ("clear", GOOD)},
            absent="No symptom fired",
        ),
    )
