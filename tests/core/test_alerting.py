"""Names and labels of alerts."""

import re

from kvwatch.core.alerting import alert_name, labels
from kvwatch.core.snapshot import EngineKey
from kvwatch.core.symptoms import SYMPTOMS


def test_every_symptom_has_a_name_of_its_own_as_an_alert() -> None:
    names = [alert_name(row.id) for row in SYMPTOMS]
    assert len(set(names)) == len(SYMPTOMS)
    assert all(re.fullmatch(r"KVWatch([A-Z][a-z]+)+", name) for name in names)


def test_labels_are_those_that_are_there() -> None:
    own = labels(EngineKey("gpu1", "llama", "0"), "kv_thrashing")
    assert own == {
        "alertname": "KVWatchKvThrashing",
        "severity": "critical",
        "symptom": "kv_thrashing",
        "target": "gpu1",
        "model_name": "llama",
        "engine": "0",
    }
    assert labels(EngineKey("gpu1"), "target_down").keys() == {"alertname", "severity", "symptom", "target"}
