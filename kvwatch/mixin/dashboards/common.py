"""What several dashboards share: their variables, annotations, links, thresholds, and tables of symptoms."""

from __future__ import annotations

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.symptoms import limits_of
from kvwatch.mixin.dashboards.colours import ACT, GREY, LOOK, SEVERITY
from kvwatch.mixin.dashboards.elements import Annotation, Column, ThresholdStep, Variable
from kvwatch.mixin.dashboards.queries import CAUSE, EFFECT, QueryScope
from kvwatch.mixin.promql import select
from kvwatch.mixin.render_options import Options

SERVER_UID, FLEET_UID, EXPERIMENT_UID = "kvwatch-server", "kvwatch-fleet", "kvwatch-experiment"
LIMITS = limits_of({})

#: From a row of a table to the server's dashboard, with the time range and what is chosen.
TO_SERVER = (
    f"/d/{SERVER_UID}?${{__url_time_range}}&${{datasource:queryparam}}"
    "&var-job=${__data.fields.job}&var-instance=${__data.fields.instance}&var-target=${__data.fields.target}"
    "&${model_name:queryparam}&${engine:queryparam}"
)
#: The window of what is marked in graphs. Fixed: marks have no resolution.
_MARKED = "2m"


def step(threshold: str, colour: str = ACT) -> ThresholdStep:
    """At the default of a threshold of the symptom table."""
    return ThresholdStep(LIMITS[threshold], colour)


def about(threshold: str) -> str:
    """How texts name it."""
    return f"`{threshold}` ({LIMITS[threshold]:g})"


def variables(
    options: Options, suffix: str = "", named: str = "", *, engines: bool = True
) -> tuple[Variable, ...]:
    """Server, model and engine; each offers what those before it leave. `suffix` for a second set beside a first."""
    mark = f" {named}" if named else ""
    server = [f'instance=~"$instance{suffix}"', f'target=~"$target{suffix}"']

    def among(*matchers: str) -> str:
        return select("regime", 'job=~"$job"', *matchers, options.selector)

    found = (
        Variable(
            f"instance{suffix}",
            f"kvwatch{mark}",
            "The kvwatch, by the address that Prometheus scrapes. It tells apart sidecars that call their"
            " server by the same name.",
            among(),
            "instance",
        ),
        Variable(
            f"target{suffix}",
            f"Server{mark}",
            "The vLLM server, as kvwatch calls it.",
            among(server[0]),
            "target",
        ),
        Variable(
            f"model_name{suffix}",
            f"Model{mark}",
            "The model, as vLLM serves it.",
            among(*server),
            "model_name",
        ),
        Variable(
            f"engine{suffix}",
            f"Engine{mark}",
            "The engine; data-parallel ranks are engines of one server.",
            among(*server, f'model_name=~"$model_name{suffix}|"'),
            "engine",
        ),
    )
    return found if engines else found[:-1]


def job(options: Options) -> Variable:
    return Variable(
        "job", "Job", "The job under which Prometheus scrapes kvwatch.", select("up", options.selector), "job"
    )


def marks(scope: QueryScope) -> tuple[Annotation, ...]:
    """Restarts of vLLM, and where a symptom begins to fire."""
    fires = scope.loose("symptom_transitions_total", f'to="{Stage.FIRING}"')
    return (
        Annotation(
            "Restarts",
            f"increase({scope('engine_restarts_total')}[{_MARKED}]) > 0",
            "{{target}}: vLLM restarted",
            ("target",),
            ACT,
        ),
        Annotation(
            "Symptoms",
            f"increase({fires}[{_MARKED}]) > 0",
            "{{symptom}} fires",
            ("target", "engine"),
            LOOK,
        ),
    )


def symptom_columns(options: Options, *, server: bool) -> tuple[Column, ...]:
    """Of `queries.firing` with runbooks."""
    where = Column("target", "server", width=130, link=TO_SERVER, link_title="This server, at this time")
    return (
        Column("severity", width=80, words={level: (level, colour) for level, colour in SEVERITY.items()}),
        Column(
            "title",
            "symptom",
            link=f"{options.runbook_url}/kvwatch${{__data.fields.page}}.md",
            link_title="Runbook: what it means, what to do",
        ),
        where if server else Column("engine", width=65),
        Column("why", "role", width=65, words={CAUSE: ("cause", ACT), EFFECT: ("effect", GREY)}),
        Column("Value", "since", unit="dtdurations", decimals=0, width=90),
    )
