"""Names and labels of alerts."""

import re

from kvwatch.core.export.alert_names import alert_labels, alert_name
from kvwatch.core.judgement.symptoms import SYMPTOMS
from kvwatch.core.model.snapshot import EngineKey


def test_every_symptom_has_a_name_of_its_own_as_an_alert() -> None:
    names = [alert_name(row.id) for row in SYMPTOMS]
    assert len(set(names)) == len(SYMPTOMS)
    assert all(re.fullmatch(r"KVWatch([A-Z][a-z]+)+", name) for name in names)


def test_labels_are_those_that_are_there() -> None:
    own = alert_labels(EngineKey("gpu1", "llama", "0"), "kv_thrashing")
    assert own == {
        "alertname": "KVWatchKvThrashing",
        "severity": "critical",
        "symptom": "kv_thrashing",
        "target": "gpu1",
        "model_name": "llama",
        "engine": "0",
    }
    assert alert_labels(EngineKey("gpu1"), "target_down").keys() == {
        "alertname",
        "severity",
        "symptom",
        "target",
    }
