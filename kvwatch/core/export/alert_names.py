"""Names and labels of alerts, the same in Prometheus' rules and in direct notifications."""

from __future__ import annotations

from kvwatch.core.judgement.symptoms import BY_ID, Severity
from kvwatch.core.model.snapshot import EngineKey

PREFIX = "KVWatch"


def alert_name(symptom: str) -> str:
    """The alert of a symptom: ``kv_thrashing`` is ``KVWatchKvThrashing``."""
    return PREFIX + "".join(word.capitalize() for word in symptom.split("_"))


def alert_labels(key: EngineKey, symptom: str, severity: Severity | None = None) -> dict[str, str]:
    """The labels of an alert, by default with the severity of the symptom's row.

    An alert about the whole target has no model and no engine.
    """
    found = {
        "alertname": alert_name(symptom),
        "severity": (severity or BY_ID[symptom].severity).value,
        "symptom": symptom,
        "target": key.target,
        "model_name": key.model_name,
        "engine": key.engine,
    }
    return {name: value for name, value in found.items() if value}
