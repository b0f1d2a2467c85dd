"""`alertmanager.yml` and its message template: routes by severity, and inhibition of effects by their causes."""

from __future__ import annotations

from typing import Any

from kvwatch.core.export.alert_names import PREFIX, alert_name
from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS, Scope, Severity, Symptom
from kvwatch.mixin import alerts
from kvwatch.mixin.render_options import Options
from kvwatch.mixin.rules import to_yaml

_SERVER = ["instance", "target"]
"""Labels of a server. `instance` too, because sidecars may give their targets the same name. Alertmanager treats a
label that both alerts lack as equal."""

_ENGINE = [*_SERVER, "model_name", "engine"]


def config(options: Options, *, notify: bool = True) -> str:
    """`alertmanager.yml`. The receivers name what must be filled in.

    Without `notify` the receivers are empty: alerts show only on Alertmanager's own page.
    """
    receivers = _receivers()
    return to_yaml(
        {
            "templates": ["templates/*.tmpl"],
            "route": {
                "receiver": "default",
                "group_by": ["target"],
                "group_wait": "30s",
                "group_interval": "5m",
                "repeat_interval": "4h",
                "routes": [
                    _route(Severity.CRITICAL, group_wait="10s", repeat_interval="1h"),
                    _route(Severity.WARNING, repeat_interval="12h"),
                    _route(Severity.INFO, group_wait="5m", repeat_interval="4d"),
                ],
            },
            "inhibit_rules": _inhibitions(options),
            "receivers": receivers if notify else [{"name": one["name"]} for one in receivers],
        }
    )


def _route(severity: Severity, **times: str) -> dict[str, Any]:
    return {
        "receiver": f"kvwatch-{severity.value}",
        "matchers": [f'alertname=~"{PREFIX}.+"', f'severity="{severity.value}"'],
        **times,
    }


def _inhibitions(options: Options) -> list[dict[str, Any]]:
    enabled = {one.symptom.id for one in alerts.symptom_alerts(options) if one.symptom}
    ours = f'alertname=~"{PREFIX}.+"'
    rules = [
        _inhibit([ours, 'severity="critical"', 'target=~".+"'], [ours, 'severity=~"warning|info"'], _ENGINE)
    ]
    for cause in SYMPTOMS:
        effects = [BY_ID[name] for name in cause.explains if name in enabled]
        if cause.id not in enabled:
            continue
        for equal in (_SERVER, _ENGINE):
            muted = [alert_name(effect.id) for effect in effects if _equal_labels(cause, effect) == equal]
            if muted:
                source = [f'alertname="{alert_name(cause.id)}"']
                rules.append(_inhibit(source, [f'alertname=~"{"|".join(muted)}"'], equal))
    return [*rules, *_objective_inhibition(options, enabled)]


def _objective_inhibition(options: Options, enabled: set[str]) -> list[dict[str, Any]]:
    """Mutes the TTFT objective while a critical symptom explains why it is missed.

    Only critical alerts mute it, whatever severities the options set: a page is never muted by an alert that pages
    nobody.
    """
    causes = [alert_name(row.id) for row in SYMPTOMS if "ttft_high" in row.explains and row.id in enabled]
    burns = [
        one.name for one in alerts.meta_alerts(options) if one.name in (alerts.FAST_BURN, alerts.SLOW_BURN)
    ]
    if not (causes and burns):
        return []
    source = [f'alertname=~"{"|".join(causes)}"', 'severity="critical"']
    return [_inhibit(source, [f'alertname=~"{"|".join(burns)}"'], _SERVER)]


def _inhibit(source: list[str], target: list[str], equal: list[str]) -> dict[str, Any]:
    return {"source_matchers": source, "target_matchers": target, "equal": equal}


def _equal_labels(cause: Symptom, effect: Symptom) -> list[str]:
    """The labels that must be equal: those of the engine, or of the server if either symptom is about all of it."""
    return _ENGINE if cause.scope is Scope.ENGINE and effect.scope is Scope.ENGINE else _SERVER


def _receivers() -> list[dict[str, Any]]:
    slack = {
        "api_url_file": "/etc/alertmanager/secrets/slack-url",
        "send_resolved": True,
        "title": '{{ template "kvwatch.title" . }}',
        "text": '{{ template "kvwatch.text" . }}',
    }
    pager = {
        "routing_key_file": "/etc/alertmanager/secrets/pagerduty-key",
        "severity": "critical",
        "description": '{{ template "kvwatch.title" . }}',
        "details": {"firing": '{{ template "kvwatch.text" . }}'},
    }
    hook = {"url": "http://webhook.example.com/kvwatch", "send_resolved": True}
    return [
        {"name": "default"},
        {
            "name": "kvwatch-critical",
            "pagerduty_configs": [pager],
            "slack_configs": [{**slack, "channel": "#kvwatch-critical"}],
        },
        {"name": "kvwatch-warning", "slack_configs": [{**slack, "channel": "#kvwatch"}]},
        {"name": "kvwatch-info", "webhook_configs": [hook]},
    ]


TEMPLATE = """\
{{- /* Rendered by `kvwatch render`. Edits here are lost. */ -}}
{{ define "kvwatch.title" -}}
[{{ .Status | toUpper }}{{ if eq .Status "firing" }}: {{ .Alerts.Firing | len }}{{ end }}]
{{- with .CommonLabels.target }} {{ . }}{{ end }}
{{- with .CommonAnnotations.summary }} {{ . }}{{ else }} {{ .Alerts | len }} alerts{{ end }}
{{- end }}

{{ define "kvwatch.text" -}}
{{ range .Alerts.Firing -}}
{{ .Labels.severity | toUpper }}: {{ .Annotations.summary }}
{{ .Annotations.description }}
{{- with .Annotations.evidence }}
Evidence: {{ . }}{{ end }}
{{- with .Annotations.actions }}
What to do, in this order: {{ . }}{{ end }}
{{- with .Annotations.runbook_url }}
Runbook: {{ . }}{{ end }}
{{- with .Annotations.dashboard_url }}
Dashboard: {{ . }}{{ end }}

{{ end -}}
{{ range .Alerts.Resolved -}}
Resolved: {{ .Annotations.summary }} ({{ .Labels.target }}{{ with .Labels.model_name }}, {{ . }}{{ end }})
{{ end -}}
{{ end }}
"""
"""Evidence and actions are annotations only of alerts that kvwatch sends itself. In the rules they are in the
description."""
