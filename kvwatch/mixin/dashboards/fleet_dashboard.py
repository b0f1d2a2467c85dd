"""Many servers: where it is worst, which models wait, how much capacity they need, who is unreachable."""

from __future__ import annotations

from kvwatch.core.history.regimes import Regime
from kvwatch.mixin.dashboards import model_panels
from kvwatch.mixin.dashboards.colours import ACT, GOOD, GREY, LOOK, REGIME, SEVERITY
from kvwatch.mixin.dashboards.common import (
    FLEET_UID,
    TO_SERVER,
    job,
    marks,
    step,
    symptom_columns,
    variables,
)
from kvwatch.mixin.dashboards.elements import (
    Column,
    Dashboard,
    Panel,
    PanelKind,
    PanelRow,
    Query,
    ThresholdStep,
)
from kvwatch.mixin.dashboards.queries import MODEL, SERVER, QueryScope, firing, highest, ratio, total
from kvwatch.mixin.render_options import Options

#: Regimes in which requests are held up.
_HELD = f'regime=~"{Regime.KV_LIMITED}|{Regime.SEQUENCE_LIMITED}|{Regime.PREFILL_LIMITED}"'
_SERVER_COLUMN = Column("target", "server", width=170, link=TO_SERVER, link_title="This server, at this time")


def dashboard(options: Options) -> Dashboard:
    scope = QueryScope(options.selector)
    return Dashboard(
        FLEET_UID,
        "kvwatch / Fleet",
        "Which of many vLLM servers are worst, which models wait and for what, and how much capacity is"
        " missing.",
        (
            _now(scope, options),
            model_panels.waiting(scope),
            model_panels.capacity(scope),
            model_panels.latency(scope),
            _reach(scope),
        ),
        (job(options), *variables(options)),
        marks(scope),
        refresh="1m",
    )


def _now(scope: QueryScope, options: Options) -> PanelRow:
    up = scope("up")
    fires = scope.loose("symptom_firing")
    spent = scope.rate("regime_seconds_total")
    held = scope.rate("regime_seconds_total", _HELD)
    return PanelRow(
        "Where is it worst?",
        (
            Panel(
                "Servers",
                PanelKind.STAT,
                "none",
                (
                    Query(f"count({up})", "watched"),
                    Query(f"count({up} == 0) or 0 * count({up})", "unreachable"),
                ),
                "Servers that kvwatch watches, and those whose newest scrape failed. What is unreachable is"
                " in no other number here.",
                width=5,
                height=4,
                base=GREY,
                names=True,
                absent="No kvwatch is scraped",
            ),
            Panel(
                "Engines by regime now",
                PanelKind.BARS,
                "none",
                (Query(total(f"{scope.loose('regime')} == 1", "regime"), "{{regime}}"),),
                "How many engines are in which regime at this moment: the limits name what requests wait for.",
                width=9,
                height=4,
                colours=REGIME,
                absent="No kvwatch is scraped",
            ),
            Panel(
                "Symptoms that fire, by severity",
                PanelKind.STAT,
                "none",
                (
                    Query(
                        "count by (severity) (\n"
                        f"({highest(fires, f'{SERVER}, symptom')} == 1)\n"
                        f"* on ({SERVER}, symptom) group_left (severity) {scope('symptom_info')})",
                        "{{severity}}",
                    ),
                ),
                "Symptoms that fire, once per server, effects of others included.",
                width=10,
                height=4,
                colours=SEVERITY,
                names=True,
                absent="Nothing fires",
            ),
            Panel(
                "Worst servers first",
                PanelKind.TABLE,
                "none",
                (
                    Query(highest(scope("cache_pressure_score"), MODEL), "score"),
                    Query(ratio(held, spent, MODEL), "held up"),
                    Query(highest(scope("kv_cache_demand_ratio"), MODEL), "demand"),
                    Query(highest(scope("kv_cache_usage_peak_1m_ratio"), MODEL), "peak"),
                    Query(total(scope("requests_waiting"), MODEL), "waiting"),
                    Query(
                        ratio(
                            scope.rate("prefix_cache_hit_tokens_total"),
                            scope.rate("prefix_cache_queried_tokens_total"),
                            MODEL,
                        ),
                        "hit ratio",
                    ),
                ),
                "A line per model on a server, the highest cache pressure first; a click on a server opens"
                " its dashboard with this time range. Held up: share of the time in which requests waited for"
                " the cache, a slot or prefill. Demand: 1 is exactly full.",
                width=13,
                height=8,
                columns=(
                    _SERVER_COLUMN,
                    Column("model_name", "model"),
                    Column("score", decimals=2, width=75, steps=(step("engine_restarted.pressure"),)),
                    Column(
                        "held up",
                        unit="percentunit",
                        decimals=0,
                        width=85,
                        steps=(step("kv_exhausted.share"),),
                    ),
                    Column("demand", decimals=2, width=85, steps=(step("regime.demand"),)),
                    Column(
                        "peak",
                        unit="percentunit",
                        decimals=0,
                        width=75,
                        steps=(step("regime.full_usage", LOOK),),
                    ),
                    Column("waiting", width=80),
                    Column("hit ratio", unit="percentunit", decimals=0, width=90),
                ),
                sort="score",
                absent="No server answers",
            ),
            Panel(
                "What fires, and where?",
                PanelKind.TABLE,
                "none",
                (Query(firing(scope), "firing"),),
                "Symptoms that fire now. A click on a symptom opens its runbook, on a server its dashboard."
                " Act on causes: effects go away with them.",
                width=11,
                height=8,
                columns=symptom_columns(options, server=True),
                sort="why",
                absent="Nothing fires (but down and unknown are not fine)",
            ),
            Panel(
                "Unreachable servers",
                PanelKind.TABLE,
                "none",
                (
                    Query(
                        total(scope.increase("scrapes_total", 'outcome!="ok"'), f"{SERVER}, outcome")
                        + f" > 0\nand on ({SERVER}) ({up} == 0)",
                        "failed scrapes",
                    ),
                ),
                "Servers whose newest scrape failed, with the kind of failure: refused and timeout are"
                " another matter than a wrong address. Nothing else is known of them.",
                width=24,
                height=5,
                columns=(
                    _SERVER_COLUMN,
                    Column("instance", "watched by"),
                    Column("outcome", "failure"),
                    Column("failed scrapes", decimals=0, width=130),
                ),
                sort="failed scrapes",
                absent="All servers answer",
            ),
        ),
    )


def _reach(scope: QueryScope) -> PanelRow:
    return PanelRow(
        "Who restarts, who can't be reached?",
        (
            Panel(
                "Restarts of vLLM",
                PanelKind.TABLE,
                "none",
                (
                    Query(
                        total(scope.increase("engine_restarts_total", window="$__range"), SERVER) + " > 0",
                        "restarts",
                    ),
                ),
                "Restarts that kvwatch saw in the shown time, the most first. High pressure just before one"
                " points to memory: the symptom engine_restarted says so.",
                columns=(
                    _SERVER_COLUMN,
                    Column("instance", "watched by"),
                    Column("restarts", decimals=0, width=90),
                ),
                sort="restarts",
                absent="No restarts in the shown time",
            ),
            Panel(
                "Servers that answer",
                PanelKind.LINES,
                "percentunit",
                (Query(f"avg({scope('up')})", "answer"),),
                "Share of the watched servers whose newest scrape succeeded.",
                high=1,
                steps=(ThresholdStep(0, ACT), ThresholdStep(1, GOOD)),
                absent="No kvwatch is scraped",
            ),
            Panel(
                "Failed scrapes by kind",
                PanelKind.STACK,
                "cps",
                (Query(total(scope.rate("scrapes_total", 'outcome!="ok"'), "outcome"), "{{outcome}}"),),
                "Scrapes per second that gave nothing, over all servers.",
                absent="No kvwatch is scraped",
            ),
            Panel(
                "Releases of vLLM",
                PanelKind.TABLE,
                "none",
                (Query(f"count by (version) ({scope('server_info')})", "servers"),),
                "How many servers run which release, where kvwatch may ask for /version.",
                width=12,
                height=6,
                columns=(Column("version"), Column("servers", width=100)),
                sort="servers",
            ),
            Panel(
                "Signals that are missing",
                PanelKind.TABLE,
                "none",
                (Query(total(f"{scope('core_signal_missing')} == 1", f"{SERVER}, signal"), "engines"),),
                "Signals without which no regime can be told, on servers that answer: renamed by a new"
                " release, or not yet there in an old one.",
                width=12,
                height=6,
                columns=(_SERVER_COLUMN, Column("signal"), Column("engines", width=100)),
                sort="engines",
                absent="None is missing",
            ),
        ),
    )
