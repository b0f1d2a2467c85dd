"""Every alert: one per symptom, those about kvwatch itself, and the objective for the time to first token (TTFT).

The rules of symptoms have no `for`: kvwatch itself times how long a condition must be active or clear. A symptom that
another one explains raises no alert in any Alertmanager, because the expression excludes it. All labels stay: only
`instance` distinguishes sidecars that give their targets the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope, Severity, Symptom
from kvwatch.mixin.promql import select
from kvwatch.mixin.recording import late_share
from kvwatch.mixin.render_options import FAST, SLOW, Options, meta_name

FAST_BURN, SLOW_BURN = meta_name("TtftBudgetFastBurn"), meta_name("TtftBudgetSlowBurn")

_EVIDENCE_VALUE = (
    "{{ if .Labels.text }}{{ .Labels.text }}"
    '{{ else if match "seconds$" .Labels.evidence }}{{ .Value | humanizeDuration }}'
    '{{ else if lt .Value 1000.0 }}{{ .Value | printf "%.3g" }}'
    '{{ else }}{{ .Value | printf "%.0f" }}{{ end }}'
)
"""Template for one sample of evidence: its text, a duration if its name ends in seconds, else three digits or all
before the point."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `symptom` is None for alerts about kvwatch itself and the objective."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    for_duration: str = ""
    """How long the expression must hold, in Prometheus' format. Empty: fires at once."""
    symptom: Symptom | None = None

    @property
    def page(self) -> str:
        """File name of the runbook."""
        return f"{self.name.lower()}.md"


def every(options: Options) -> tuple[Alert, ...]:
    """All alerts, disabled or not. OptionsError if the options name an unknown alert."""
    everything = options.model_copy(update={"disabled": frozenset()})
    found = (*symptom_alerts(everything), *meta_alerts(everything))
    options.check_names([one.name for one in found])
    return found


def symptom_alerts(options: Options) -> tuple[Alert, ...]:
    """The alerts of the symptoms that are not disabled: one each, or two if users may not notice a symptom."""
    return _enabled((one for row in SYMPTOMS for one in _symptom_alerts(row, options)), options)


def meta_alerts(options: Options) -> tuple[Alert, ...]:
    """The alerts about kvwatch itself and the objective that are not disabled."""
    return _enabled((*_self_monitoring(options), *_objective(options)), options)


def _enabled(alerts: Iterable[Alert], options: Options) -> tuple[Alert, ...]:
    return tuple(
        replace(one, severity=options.severity.get(one.name, one.severity))
        for one in alerts
        if one.name not in options.disabled
    )


# -- symptoms ----------------------------------------------------------------------------------------------------


def _symptom_alerts(row: Symptom, options: Options) -> Iterator[Alert]:
    matcher = f'symptom="{row.id}"'
    where = "{{ $labels.target }}"
    if row.scope is Scope.ENGINE:
        where += ", model {{ $labels.model_name }}, engine {{ $labels.engine }}"
    firing = select("symptom_firing", matcher, options.selector)
    explained = select("symptom_explained", matcher, options.selector)
    alert = Alert(
        name=alert_name(row.id),
        expr=f"{firing} == 1\nunless\n{explained} == 1",
        severity=row.severity,
        summary=f"{row.title}.",
        description=f"{where}: {row.meaning}{_evidence(row.id)}{_actions(row.id)}",
        symptom=row,
    )
    if row.calm_severity is None:
        yield alert
        return
    noticed = select("symptom_evidence", matcher, 'evidence="users_suffer"', options.selector)
    here = "on (job, instance, target, model_name, engine)"
    yield replace(alert, expr=f"{alert.expr}\nand {here}\n{noticed} == 1")
    yield replace(alert, expr=f"{alert.expr}\nunless {here}\n{noticed} == 1", severity=row.calm_severity)


def _actions(symptom: str) -> str:
    """A template that queries the actions when the alert is sent. It is empty without any."""
    selector, values = _lookup("symptom_action_info", symptom)
    return (
        f"{{{{ with printf `{selector}` {values} | query | sortByLabel `rank` }}}}\nWhat to do:{{{{ range . }}}}\n"
        "{{ .Labels.rank }}. {{ .Labels.text }}{{ if eq .Labels.restart `true` }} (needs a restart){{ end }}{{ end }}"
        "{{ end }}"
    )


def _lookup(metric: str, symptom: str) -> tuple[str, str]:
    """A selector of a metric of the alert's symptom with %q for its labels, and the labels."""
    labels = ("job", "instance", "target", "model_name", "engine")
    selector = select(metric, f'symptom="{symptom}"', *(f"{label}=%q" for label in labels))
    return selector, " ".join(f"$labels.{label}" for label in labels)


def _evidence(symptom: str) -> str:
    """A template that queries the evidence when the alert is sent. It is empty without evidence."""
    selector, values = _lookup("symptom_evidence", symptom)
    name = '{{ reReplaceAll "_" " " (reReplaceAll "_?seconds$" "" .Labels.evidence) }}'
    return (
        f"{{{{ with printf `{selector}` {values} | query | sortByLabel `evidence` }}}}\nEvidence:{{{{ range $n, $_"
        f" := . }}}}{{{{ if $n }}}};{{{{ end }}}} {name} {_EVIDENCE_VALUE}{{{{ end }}}}.{{{{ end }}}}"
    )


# -- kvwatch itself ----------------------------------------------------------------------------------------------


def _self_monitoring(options: Options) -> tuple[Alert, ...]:
    def q(name: str, *matchers: str) -> str:
        return select(name, *matchers, options.selector)

    matchers = ",".join(filter(None, (f'job="{options.job}"', options.selector)))
    up = f"up{{{matchers}}}"
    here = "on (job, instance, target)"
    where = "{{ $labels.target }}, watched by {{ $labels.instance }}"

    failed, scrapes = q("scrapes_total", 'outcome!="ok"'), q("scrapes_total")

    def failing(window: str) -> str:
        return (
            f"sum without (outcome) (rate({failed}[{window}]))\n/\n"
            f"sum without (outcome) (rate({scrapes}[{window}])) > 0.1"
        )

    covered = q(
        "symptom_state", 'symptom=~"target_down|startup_kv_failure|signals_missing"', 'state="firing"'
    )
    # Without GPU data, gpu_underused is always unknown; the symptom itself says how to provide them.
    unknown = q("symptom_state", 'symptom!="gpu_underused"', 'state="unknown"')
    return (
        Alert(
            meta_name("Down"),
            f"{up} == 0",
            Severity.WARNING,
            "Prometheus can't scrape a kvwatch.",
            "{{ $labels.instance }}: Prometheus gets no metrics from this kvwatch. No symptom of the servers"
            " that it watches can fire. vLLM itself may be fine.",
            for_duration="2m",
        ),
        Alert(
            meta_name("Vanished"),
            f"count by (job) ({up} offset 15m)\nunless\ncount by (job) ({up}) >= count by (job) ({up} offset 15m)",
            Severity.WARNING,
            "Prometheus lost a kvwatch target.",
            "{{ $labels.job }}: Prometheus discovers fewer kvwatch instances than 15 minutes ago ({{ $value }}"
            " then). An instance that is no longer discovered has no `up` series, so KVWatchDown can't fire for"
            " it.",
            for_duration="5m",
        ),
        Alert(
            meta_name("Absent"),
            f"absent({q('up')})",
            Severity.WARNING,
            "No kvwatch reports any target.",
            "Prometheus has no kvwatch series, so no vLLM server is watched.",
            for_duration="15m",
        ),
        Alert(
            meta_name("ScrapesFailing"),
            f"{failing('15m')}\nand\n{failing('5m')}\nunless {here}\n{covered} == 1",
            Severity.WARNING,
            "Scrapes of vLLM fail intermittently.",
            f"{where}: {{{{ $value | humanizePercentage }}}} of the scrapes failed over 15 minutes (threshold"
            " 10%). The server does not count as down. Symptoms are judged from the scrapes that succeed.",
            for_duration="5m",
        ),
        Alert(
            meta_name("DataStale"),
            f"{q('data_age_seconds')} > 30 + 5 * {q('scrape_interval_seconds')}\nunless\n{q('up')} == 0",
            Severity.WARNING,
            "kvwatch has stopped polling a server.",
            f"{where}: the newest data is {{{{ $value | humanizeDuration }}}} old, although the last scrape"
            " succeeded. The limit is 30 s plus five scrape intervals.",
            for_duration="1m",
        ),
        Alert(
            meta_name("PollErrors"),
            f"increase({q('poll_errors_total')}[15m]) > 0",
            Severity.WARNING,
            "kvwatch has internal errors.",
            f"{where}: kvwatch hit an internal error while polling. It keeps running. Report it as a bug, with the"
            " log.",
        ),
        Alert(
            meta_name("ReloadFailed"),
            f"{q('config_last_reload_successful')} == 0",
            Severity.WARNING,
            "kvwatch rejected its new settings.",
            "{{ $labels.instance }}: the last reload failed, and no change was applied. The previous settings stay in"
            " force. kvwatch does not start again until the new settings are fixed.",
            for_duration="5m",
        ),
        Alert(
            meta_name("SymptomsUnknown"),
            f"count without (symptom, state) ({unknown} == 1)\nunless {here}\n{q('up')} == 0",
            Severity.INFO,
            "Symptoms can't be judged.",
            f"{where}: {{{{ $value }}}} symptoms are unknown, because required signals are missing. They can't"
            " fire, even if something is wrong.",
            for_duration="30m",
        ),
    )


def _objective(options: Options) -> tuple[Alert, ...]:
    count = select("time_to_first_token_seconds_count", options.selector)
    seconds, allowed = f"{options.ttft.seconds:g} s", f"{100 - options.ttft.share * 100:.6g}%"

    def burn_rate(
        name: str, factor: float, *, long: str, short: str, least: int, severity: Severity
    ) -> Alert:
        limit = f"{options.ttft.burn(factor):g}"
        return Alert(
            name,
            f"{late_share(long)} > {limit}\nand\n{late_share(short)} > {limit}\nand\n"
            f"sum without (engine) (increase({count}[{long}])) >= {least}",
            severity,
            f"TTFT objective missed: burn rate above {factor:g}.",
            "{{ $labels.target }}, model {{ $labels.model_name }}: {{ $value | humanizePercentage }} of first tokens"
            f" took longer than {seconds} in the last {long} (objective: at most {allowed}).",
        )

    return (
        burn_rate(FAST_BURN, FAST, long="1h", short="5m", least=20, severity=Severity.CRITICAL),
        burn_rate(SLOW_BURN, SLOW, long="6h", short="30m", least=50, severity=Severity.WARNING),
    )
