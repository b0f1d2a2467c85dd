"""Many servers: which are worst, which models wait, how much capacity is missing, which servers are unreachable."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.mixin.dashboards import model_panels
from kvwatch.mixin.dashboards.colours import ACT, GOOD, GREY, LOOK, REGIME, SEVERITY
from kvwatch.mixin.dashboards.common import (
    FLEET_UID,
    NO_KVWATCH,
    firing_symptoms,
    graph_annotations,
    job_variable,
    percent_column,
    server_column,
    threshold_step,
    variables,
)
from kvwatch.mixin.dashboards.elements import (
    Column,
    Dashboard,
    Panel,
    PanelRow,
    ThresholdStep,
    bars,
    ratio_panel,
    stacked,
    stat,
    table,
)
from kvwatch.mixin.dashboards.queries import MODEL, RANGE, SERVER, QueryScope, highest, ratio, total
from kvwatch.mixin.render_options import Options

_LIMITED = f'regime=~"{Regime.KV_LIMITED}|{Regime.SEQUENCE_LIMITED}|{Regime.PREFILL_LIMITED}"'
_SERVER_COLUMN = server_column(170)


def dashboard(options: Options) -> Dashboard:
    scope = QueryScope(options.selector)
    return Dashboard(
        FLEET_UID,
        "kvwatch / Fleet",
        "Many vLLM servers: the worst ones, the models whose requests wait, and the missing capacity.",
        (
            PanelRow("Which servers are worst?", (*_summary(scope), *_tables(scope, options))),
            model_panels.waiting(scope),
            model_panels.capacity(scope),
            model_panels.latency(scope),
            _availability(scope),
        ),
        (job_variable(options), *variables(options)),
        graph_annotations(scope),
        refresh="1m",
    )


def _summary(scope: QueryScope) -> tuple[Panel, ...]:
    up = scope("up")
    fires = highest(scope.or_server("symptom_firing"), f"{SERVER}, symptom")
    return (
        stat(
            "Servers",
            {"watched": f"count({up})", "unreachable": f"count({up} == 0) or 0 * count({up})"},
            "Servers that kvwatch watches, and those whose last scrape failed. No other panel of this row includes"
            " unreachable servers.",
            size=(5, 4),
            base=GREY,
            names=True,
            absent=NO_KVWATCH,
        ),
        bars(
            "Engines by regime now",
            {"{{regime}}": total(f"{scope.or_server('regime')} == 1", "regime")},
            "Number of engines in each regime now. A regime that ends in _limited names the resource that"
            " requests wait for.",
            size=(9, 4),
            colours=REGIME,
            absent=NO_KVWATCH,
        ),
        stat(
            "Firing symptoms by severity",
            {
                "{{severity}}": f"count by (severity) (\n({fires} == 1)\n"
                f"* on ({SERVER}, symptom) group_left (severity) {scope('symptom_info')})"
            },
            "Firing symptoms, each counted once per server. Symptoms that another one covers are included.",
            size=(10, 4),
            colours=SEVERITY,
            names=True,
            absent="No finding",
        ),
    )


def _tables(scope: QueryScope, options: Options) -> tuple[Panel, ...]:
    limited, spent = scope.rate("regime_seconds_total", _LIMITED), scope.rate("regime_seconds_total")
    failed = total(scope.increase("scrapes_total", 'outcome!="ok"'), f"{SERVER}, outcome")
    return (
        table(
            "Worst servers",
            {
                "score": highest(scope("cache_pressure_score"), MODEL),
                "limited": ratio(limited, spent, MODEL),
                "demand": highest(scope("kv_cache_demand_ratio"), MODEL),
                "peak": highest(scope("kv_cache_usage_peak_1m_ratio"), MODEL),
                "waiting": total(scope("requests_waiting"), MODEL),
                "hit rate": scope.hit_ratio(MODEL),
            },
            "One line per model on a server, highest cache-pressure score first. Click a server to open its"
            " dashboard. Limited: share of time in which requests waited for the cache, a slot or prefill."
            " Demand: 1 is exactly full.",
            size=(13, 8),
            columns=(
                _SERVER_COLUMN,
                Column("model_name", "model"),
                Column("score", decimals=2, width=75, steps=(threshold_step("engine_restarted.pressure"),)),
                percent_column("limited", 85, threshold_step("kv_exhausted.share")),
                Column("demand", decimals=2, width=85, steps=(threshold_step("regime.demand"),)),
                percent_column("peak", 75, threshold_step("regime.full_usage", LOOK)),
                Column("waiting", width=80),
                percent_column("hit rate", 90),
            ),
            sort="score",
            absent="No server is reachable",
        ),
        firing_symptoms(scope, options, size=(11, 8), where=server_column(130)),
        table(
            "Unreachable servers",
            {"failed scrapes": f"{failed} > 0\nand on ({SERVER}) ({scope('up')} == 0)"},
            "Servers whose last scrape failed, by kind of failure (refused, timeout, DNS and others). kvwatch"
            " knows nothing else about them.",
            size=(24, 5),
            columns=(
                _SERVER_COLUMN,
                Column("instance", "watched by"),
                Column("outcome", "failure"),
                Column("failed scrapes", decimals=0, width=130),
            ),
            sort="failed scrapes",
            absent="All servers are reachable",
        ),
    )


def _availability(scope: QueryScope) -> PanelRow:
    restarts = total(scope.increase("engine_restarts_total", window=RANGE), SERVER)
    return PanelRow(
        "Which servers restart or are unreachable?",
        (
            table(
                "Restarts of vLLM",
                {"restarts": f"{restarts} > 0"},
                "Restarts in the shown time range, most first. High cache pressure just before a restart"
                " suggests that memory ran out: see engine_restarted.",
                columns=(
                    _SERVER_COLUMN,
                    Column("instance", "watched by"),
                    Column("restarts", decimals=0, width=90),
                ),
                sort="restarts",
                absent="No restarts in the shown time range",
            ),
            ratio_panel(
                "Reachable servers",
                {"reachable": f"avg({scope('up')})"},
                "Share of watched servers whose last scrape succeeded.",
                steps=(ThresholdStep(0, ACT), ThresholdStep(1, GOOD)),
                absent=NO_KVWATCH,
            ),
            stacked(
                "Failed scrapes",
                {"{{outcome}}": total(scope.rate("scrapes_total", 'outcome!="ok"'), "outcome")},
                "Failed scrapes per second by kind of failure, over all servers.",
                unit="cps",
                absent=NO_KVWATCH,
            ),
            table(
                "vLLM releases",
                {"servers": f"count by (version) ({scope('server_info')})"},
                "Number of servers by vLLM release, if kvwatch can read /version.",
                size=(12, 6),
                columns=(Column("version"), Column("servers", width=100)),
                sort="servers",
            ),
            table(
                "Missing signals",
                {"engines": total(f"{scope('core_signal_missing')} == 1", f"{SERVER}, signal")},
                "Signals that the regime requires, missing on reachable servers. Either a new release renamed"
                " them, or an old one does not have them.",
                size=(12, 6),
                columns=(_SERVER_COLUMN, Column("signal"), Column("engines", width=100)),
                sort="engines",
                absent="No signal is missing",
            ),
        ),
    )
