"""Every alert: one per symptom, and those about kvwatch itself and the objective for first tokens.

How long a symptom must hold and how long it must be over is kvwatch's own doing, so their rules have no `for`. One
that another accounts for makes no alert at all, in whatever Alertmanager: the expression leaves it out. All labels
stay, since only `instance` tells apart sidecars that each call their server by the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvwatch.core.export.alert_names import alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope, Severity, Symptom
from kvwatch.core.model.snapshot import EngineKey, Snapshot
from kvwatch.mixin.promql import select
from kvwatch.mixin.recording import late
from kvwatch.mixin.render_options import FAST, SLOW, Options, alert

FAST_BURN, SLOW_BURN = alert("TtftBudgetFastBurn"), alert("TtftBudgetSlowBurn")
#: Actions that a notification shows; the runbook has them all.
_SHOWN = 3
#: A sample in words: its text, or its value with the unit that its name says, three digits, or all before the point.
_VALUE = (
    "{{ if .Labels.text }}{{ .Labels.text }}"
    '{{ else if match "seconds$" .Labels.evidence }}{{ .Value | humanizeDuration }}'
    '{{ else if lt .Value 1000.0 }}{{ .Value | printf "%.3g" }}'
    '{{ else }}{{ .Value | printf "%.0f" }}{{ end }}'
)
_GENERIC = Snapshot(EngineKey("any"))


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `symptom` is what it is about, None if it is about kvwatch itself or the objective."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    held: str = ""
    """How long the expression must hold, as Prometheus writes durations; at once if empty."""
    symptom: Symptom | None = None

    @property
    def page(self) -> str:
        """The file name of its runbook."""
        return f"{self.name.lower()}.md"


def symptoms(options: Options) -> tuple[Alert, ...]:
    """One alert per symptom, disabled ones left out."""
    return _chosen((_of(row, options) for row in SYMPTOMS), options)


def _of(row: Symptom, options: Options) -> Alert:
    this = f'symptom="{row.id}"'
    where = "{{ $labels.target }}"
    if row.scope is Scope.ENGINE:
        where += ", model {{ $labels.model_name }}, engine {{ $labels.engine }}"
    first = [action.text for action in row.actions_for(_GENERIC)[:_SHOWN]]
    todo = "".join(f"\n{number}. {text}" for number, text in enumerate(first, 1))
    firing = select("symptom_firing", this, options.selector)
    explained = select("symptom_explained", this, options.selector)
    return Alert(
        name=alert_name(row.id),
        expr=f"{firing} == 1\nunless\n{explained} == 1",
        severity=row.severity,
        summary=f"{row.title}.",
        description=f"{where}: {row.meaning}{_numbers(row.id)}\nWhat to do first:{todo}",
        symptom=row,
    )


def _numbers(symptom: str) -> str:
    """A template that looks up the evidence when the alert is told of; nothing where there is none."""
    own = ("job", "instance", "target", "model_name", "engine")
    wanted = select("symptom_evidence", f'symptom="{symptom}"', *(f"{label}=%q" for label in own))
    given = " ".join(f"$labels.{label}" for label in own)
    name = '{{ reReplaceAll "_" " " (reReplaceAll "_?seconds$" "" .Labels.evidence) }}'
    return (
        f"{{{{ with printf `{wanted}` {given} | query | sortByLabel `evidence` }}}}\nEvidence:"
        f"{{{{ range $n, $_ := . }}}}{{{{ if $n }}}};{{{{ end }}}} {name} {_VALUE}{{{{ end }}}}.{{{{ end }}}}"
    )


def meta(options: Options) -> tuple[Alert, ...]:
    """The alerts about kvwatch itself and the objective, disabled ones left out."""
    return _chosen((*_watching(options), *_objective(options)), options)


def _watching(options: Options) -> tuple[Alert, ...]:
    def q(name: str, *matchers: str) -> str:
        return select(name, *matchers, options.selector)

    matchers = ",".join(filter(None, (f'job="{options.job}"', options.selector)))
    up = f"up{{{matchers}}}"
    here = "on (job, instance, target)"
    where = "{{ $labels.target }} as seen by {{ $labels.instance }}"

    failed, scrapes = q("scrapes_total", 'outcome!="ok"'), q("scrapes_total")

    def failing(window: str) -> str:
        return (
            f"sum without (outcome) (rate({failed}[{window}]))\n/\n"
            f"sum without (outcome) (rate({scrapes}[{window}])) > 0.1"
        )

    told = q("symptom_state", 'symptom=~"target_down|startup_kv_failure|signals_missing"', 'state="firing"')
    # Where no GPU data is given, that one is unknown for good, and says how to give it.
    unknown = q("symptom_state", 'symptom!="gpu_underused"', 'state="unknown"')
    return (
        Alert(
            alert("Down"),
            f"{up} == 0",
            Severity.WARNING,
            "A kvwatch can't be scraped.",
            "{{ $labels.instance }}: Prometheus gets no metrics from this kvwatch, so nothing is judged there and no"
            " symptom can fire. vLLM itself may be well.",
            held="2m",
        ),
        Alert(
            alert("Vanished"),
            f"count by (job) ({up} offset 15m)\nunless\ncount by (job) ({up}) >= count by (job) ({up} offset 15m)",
            Severity.WARNING,
            "Fewer kvwatch are known to Prometheus than a quarter of an hour ago.",
            "{{ $labels.job }}: there were {{ $value }} a quarter of an hour ago. One that is no longer discovered"
            " has no up that could be 0.",
            held="5m",
        ),
        Alert(
            alert("Absent"),
            f"absent({q('up')})",
            Severity.WARNING,
            "No kvwatch tells of any server.",
            "Nothing is watched: Prometheus has not one series of kvwatch.",
            held="15m",
        ),
        Alert(
            alert("ScrapesFailing"),
            f"{failing('15m')}\nand\n{failing('5m')}\nunless {here}\n{told} == 1",
            Severity.WARNING,
            "Part of the scrapes of a vLLM fail.",
            f"{where}: {{{{ $value | humanizePercentage }}}} of the scrapes of the last 15 minutes failed, though the"
            " server does not count as down. What it says in between is judged; what happened meanwhile is not seen.",
            held="5m",
        ),
        Alert(
            alert("DataStale"),
            f"{q('data_age_seconds')} > 30 + 5 * {q('scrape_interval_seconds')}\nunless\n{q('up')} == 0",
            Severity.WARNING,
            "What kvwatch shows of a server is old.",
            f"{where}: the newest data is {{{{ $value | humanizeDuration }}}} old, though the last scrape succeeded:"
            " kvwatch has stopped polling.",
            held="1m",
        ),
        Alert(
            alert("PollErrors"),
            f"increase({q('poll_errors_total')}[15m]) > 0",
            Severity.WARNING,
            "kvwatch meets errors of its own.",
            f"{where}: while polling, kvwatch ran into an error of its own. It goes on; each one is a bug to report.",
        ),
        Alert(
            alert("ReloadFailed"),
            f"{q('config_last_reload_successful')} == 0",
            Severity.WARNING,
            "A kvwatch was told to read its settings anew and could not use them.",
            "{{ $labels.instance }}: the settings that it found at its last reload were refused as a whole. Those"
            " before stay in force, and what was changed does not count; the next start fails if they stay wrong.",
            held="5m",
        ),
        Alert(
            alert("SymptomsUnknown"),
            f"count without (symptom, state) ({unknown} == 1)\nunless {here}\n{q('up')} == 0",
            Severity.INFO,
            "Symptoms can't be judged.",
            f"{where}: {{{{ $value }}}} symptoms are unknown: the signals that they need are missing. They can't"
            " fire, which does not mean that all is well.",
            held="30m",
        ),
    )


def _objective(options: Options) -> tuple[Alert, ...]:
    count = select("time_to_first_token_seconds_count", options.selector)
    seconds, share = f"{options.ttft.seconds:g} s", f"{options.ttft.share * 100:g} %"

    def burning(name: str, factor: float, *, long: str, short: str, least: int, severity: Severity) -> Alert:
        limit = f"{options.ttft.burn(factor):g}"
        return Alert(
            name,
            f"{late(long)} > {limit}\nand\n{late(short)} > {limit}\nand\n"
            f"sum without (engine) (increase({count}[{long}])) >= {least}",
            severity,
            f"First tokens come late so often that the objective is missed {factor:g} times as fast as it may be.",
            "{{ $labels.target }}, model {{ $labels.model_name }}: {{ $value | humanizePercentage }} of the first"
            f" tokens of the last {long} took longer than {seconds}; {share} should not.",
        )

    return (
        burning(FAST_BURN, FAST, long="1h", short="5m", least=20, severity=Severity.CRITICAL),
        burning(SLOW_BURN, SLOW, long="6h", short="30m", least=50, severity=Severity.WARNING),
    )


def every(options: Options) -> tuple[Alert, ...]:
    """All alerts, disabled or not; OptionsError if the options name one that there is not."""
    everything = options.model_copy(update={"disabled": frozenset()})
    found = (*symptoms(everything), *meta(everything))
    options.named([one.name for one in found])
    return found


def _chosen(alerts: Iterable[Alert], options: Options) -> tuple[Alert, ...]:
    return tuple(
        replace(one, severity=options.severity.get(one.name, one.severity))
        for one in alerts
        if one.name not in options.disabled
    )
