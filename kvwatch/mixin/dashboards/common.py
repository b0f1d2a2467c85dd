"""What several dashboards share: variables, annotations, links, thresholds, and panels that appear more than once."""

from __future__ import annotations

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.symptoms import limits_of
from kvwatch.mixin.dashboards.colours import ACT, GREY, LOOK, REGIME, SEVERITY
from kvwatch.mixin.dashboards.elements import (
    Annotation,
    Column,
    Panel,
    ThresholdStep,
    Variable,
    stacked,
    table,
)
from kvwatch.mixin.dashboards.queries import CAUSE, EFFECT, QueryScope, firing, regime_share
from kvwatch.mixin.promql import select
from kvwatch.mixin.render_options import Options

SERVER_UID, FLEET_UID, EXPERIMENT_UID = "kvwatch-server", "kvwatch-fleet", "kvwatch-experiment"
LIMITS = limits_of({})
NO_KVWATCH = "No kvwatch is scraped"

_SERVER_URL = (
    f"/d/{SERVER_UID}?${{__url_time_range}}&${{datasource:queryparam}}"
    "&var-job=${__data.fields.job}&var-instance=${__data.fields.instance}&var-target=${__data.fields.target}"
    "&${model_name:queryparam}&${engine:queryparam}"
)
_ANNOTATION_WINDOW = "2m"
"""Fixed, because annotations have no resolution."""


# -- thresholds --------------------------------------------------------------------------------------------------


def threshold_step(threshold: str, colour: str = ACT) -> ThresholdStep:
    """A step at the default of a threshold of the symptoms."""
    return ThresholdStep(LIMITS[threshold], colour)


def threshold_text(threshold: str, unit: str = "") -> str:
    """The threshold and its default with `unit`, for a description."""
    return f"`{threshold}` ({LIMITS[threshold]:g}{unit})"


# -- variables and annotations -----------------------------------------------------------------------------------


def job_variable(options: Options) -> Variable:
    return Variable(
        "job", "Job", "Job under which Prometheus scrapes kvwatch.", select("up", options.selector), "job"
    )


def variables(
    options: Options, suffix: str = "", side: str = "", *, engines: bool = True
) -> tuple[Variable, ...]:
    """kvwatch, server, model and engine. Each offers what those before it leave.

    `suffix` and `side` are for a second set of names and titles.
    """
    side = f" {side}" if side else ""
    matchers = [
        f'instance=~"$instance{suffix}"',
        f'target=~"$target{suffix}"',
        f'model_name=~"$model_name{suffix}|"',
    ]
    rows = (
        (
            "instance",
            "kvwatch",
            "Address of the kvwatch. It distinguishes sidecars whose targets have the same name.",
        ),
        ("target", "Server", "vLLM server, by its name in kvwatch."),
        ("model_name", "Model", "Model, by the name that vLLM serves."),
        ("engine", "Engine", "Engine. Data-parallel ranks are engines of one server."),
    )
    return tuple(
        Variable(
            f"{label}{suffix}",
            f"{title}{side}",
            description,
            select("regime", 'job=~"$job"', *matchers[:before], options.selector),
            label,
        )
        for before, (label, title, description) in enumerate(rows if engines else rows[:-1])
    )


def graph_annotations(scope: QueryScope) -> tuple[Annotation, ...]:
    """Restarts of vLLM, and the moments at which a symptom begins to fire."""
    fires = scope.or_server("symptom_transitions_total", f'to="{Stage.FIRING}"')
    return (
        Annotation(
            "Restarts",
            f"increase({scope('engine_restarts_total')}[{_ANNOTATION_WINDOW}]) > 0",
            "{{target}}: vLLM restarted",
            ("target",),
            ACT,
        ),
        Annotation(
            "Symptoms",
            f"increase({fires}[{_ANNOTATION_WINDOW}]) > 0",
            "{{symptom}} fires",
            ("target", "engine"),
            LOOK,
        ),
    )


# -- panels ------------------------------------------------------------------------------------------------------


def server_column(width: int) -> Column:
    """The target, with a link to its dashboard."""
    return Column("target", "server", width=width, link=_SERVER_URL, link_title="This server, at this time")


def percent_column(name: str, width: int, *steps: ThresholdStep) -> Column:
    return Column(name, unit="percentunit", decimals=0, width=width, steps=steps)


def firing_symptoms(scope: QueryScope, options: Options, *, size: tuple[int, int], where: Column) -> Panel:
    """The table of firing symptoms. `where` is the column that locates a symptom."""
    return table(
        "Firing symptoms",
        {"firing": firing(scope)},
        "Symptoms that fire now. A click opens the runbook. Fix causes first: effects resolve with them and raise no"
        " alert.",
        size=size,
        columns=(
            Column(
                "severity", width=80, words={level: (level, colour) for level, colour in SEVERITY.items()}
            ),
            Column(
                "title",
                "symptom",
                link=f"{options.runbook_url}/kvwatch${{__data.fields.page}}.md",
                link_title="Runbook: what it means, what to do",
            ),
            where,
            Column("why", "role", width=65, words={CAUSE: ("cause", ACT), EFFECT: ("effect", GREY)}),
            Column("Value", "since", unit="dtdurations", decimals=0, width=90),
        ),
        sort="why",
        absent="No finding (except for targets that are down or unknown)",
    )


def time_by_regime(scope: QueryScope, *, size: tuple[int, int]) -> Panel:
    return stacked(
        "Time by regime",
        {"{{regime}}": regime_share(scope)},
        "Share of time in each regime, from every sample of kvwatch. kv_limited: requests wait for the cache"
        " (shorter requests, more replicas or a larger cache help). sequence_limited: for a batch slot (raise"
        " --max-num-seqs). prefill_limited: for prefill (prefix reuse or more replicas help). deferred: for a"
        " LoRA slot, a KV transfer or a grammar. flowing, full: no request waits.",
        unit="percentunit",
        colours=REGIME,
        high=1,
        absent="Not watched at this time",
        size=size,
    )
