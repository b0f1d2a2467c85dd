"""The alert of each symptom, in Prometheus' own engine: when it fires, and when just not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwatch.core.export.alert_names import alert_labels, alert_name
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope, Severity, Symptom
from kvwatch.core.model.snapshot import EngineKey
from tests.support.promtool import Case, run

SCRAPED = 'job="kvwatch",instance="host:9477"'
ENGINE, SERVER = EngineKey("gpu1", "llama", "0"), EngineKey("gpu1", "", "")


def key_of(row: Symptom) -> EngineKey:
    return ENGINE if row.scope is Scope.ENGINE else SERVER


def series(
    row: Symptom,
    stage: Stage,
    *,
    explained: bool = False,
    held: bool = False,
    scraped: str = SCRAPED,
    target: str = "gpu1",
    suffering: bool = True,
) -> dict[str, str]:
    """What kvwatch exports of a symptom: its state, whether it fires (or did, if `held`), what accounts for it."""
    key = key_of(row)
    own = f'{scraped},target="{target}",symptom="{row.id}"'
    if key.model_name:
        own += f',model_name="{key.model_name}",engine="{key.engine}"'
    found = {f'kvwatch_symptom_state{{{own},state="{one}"}}': f"{int(one is stage)}x5" for one in Stage}
    if row.calm_severity:
        found[f'kvwatch_symptom_evidence{{{own},evidence="users_suffer"}}'] = f"{int(suffering)}x5"
    return found | {
        f"kvwatch_symptom_firing{{{own}}}": f"{int(held or stage is Stage.FIRING)}x5",
        f"kvwatch_symptom_explained{{{own}}}": f"{int(explained)}x5",
    }


def told(row: Symptom, *, scraped: str = SCRAPED, target: str = "gpu1") -> dict[str, str]:
    """The labels of its alert beside the name, as `core.alerting` has them, and where it was scraped."""
    own = alert_labels(key_of(row)._replace(target=target), row.id)
    where = dict(part.split("=") for part in scraped.replace('"', "").split(","))
    return {name: value for name, value in own.items() if name != "alertname"} | where


def case(row: Symptom, what: str, given: dict[str, str], *found: dict[str, str]) -> dict[str, object]:
    return Case(f"{row.id}: {what}", given, "3m", found, alert=alert_name(row.id)).written()


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_an_alert_fires_with_its_symptom_and_not_before(row: Symptom, tmp_path: Path) -> None:
    """It fires at once with the labels that it has everywhere, and never while pending, unknown, or explained."""
    run(
        tmp_path,
        [
            case(row, "fires", series(row, Stage.FIRING), told(row)),
            case(row, "not yet", series(row, Stage.PENDING)),
            case(row, "not known", series(row, Stage.UNKNOWN)),
            case(row, "not known any more", series(row, Stage.UNKNOWN, held=True), told(row)),
            case(row, "over", series(row, Stage.INACTIVE)),
            case(row, "explained by another", series(row, Stage.FIRING, explained=True)),
            case(row, "no series", {}),
        ],
    )


def test_thrashing_that_nobody_feels_is_a_warning(tmp_path: Path) -> None:
    row = next(row for row in SYMPTOMS if row.calm_severity)
    calm = told(row) | {"severity": Severity.WARNING.value}
    run(tmp_path, [case(row, "calm", series(row, Stage.FIRING, suffering=False), calm)])


def test_a_symptom_is_one_alert_and_no_other(tmp_path: Path) -> None:
    """Nothing else fires with it, and what it fires with says nothing of states."""
    row = next(row for row in SYMPTOMS if row.id == "sequence_limited")
    one = Case("all alerts", series(row, Stage.FIRING), "3m", query='ALERTS{alertstate="firing"}').written()
    one["promql_expr_test"] = [
        {
            "expr": 'count by (alertname, state) (ALERTS{alertstate="firing"})',
            "eval_time": "3m",
            "exp_samples": [{"labels": '{alertname="KVWatchSequenceLimited"}', "value": 1}],
        }
    ]
    run(tmp_path, [one])


def test_sidecars_that_call_their_server_alike_are_told_apart(tmp_path: Path) -> None:
    """What is explained at one instance still fires at another, and each keeps its own alert."""
    row = next(row for row in SYMPTOMS if row.id == "kv_exhausted")
    a, b, c = (f'job="kvwatch",instance="pod-{name}:9477"' for name in "abc")
    given = (
        series(row, Stage.FIRING, explained=True, scraped=a, target="localhost:8000")
        | series(row, Stage.FIRING, scraped=b, target="localhost:8000")
        | series(row, Stage.FIRING, scraped=c, target="localhost:8000")
    )
    found = [told(row, scraped=one, target="localhost:8000") for one in (b, c)]
    run(tmp_path, [case(row, "instances", given, *found)])


def evidence(name: str, value: float, text: str = "", **other: str) -> dict[str, str]:
    """A sample of the evidence of sequence_limited, of the engine unless `other` says whose."""
    own = {**told(next(row for row in SYMPTOMS if row.id == "sequence_limited")), **other}
    del own["severity"]
    own |= {"evidence": name} | ({"text": text} if text else {})
    inside = ",".join(f'{label}="{one}"' for label, one in own.items())
    return {f"kvwatch_symptom_evidence{{{inside}}}": f"{value}x5"}


def action(rank: int, lever: str, text: str, restart: str = "false", **other: str) -> dict[str, str]:
    """An action of sequence_limited, of the engine unless `other` says whose."""
    own = {**told(next(row for row in SYMPTOMS if row.id == "sequence_limited")), **other}
    del own["severity"]
    own |= {"rank": str(rank), "lever": lever, "text": text, "restart": restart}
    inside = ",".join(f'{label}="{one}"' for label, one in own.items())
    return {f"kvwatch_symptom_action_info{{{inside}}}": "1x5"}


def test_what_a_person_reads(tmp_path: Path) -> None:
    """Summary, description with the numbers of this engine alone, and links, word by word."""
    row = next(row for row in SYMPTOMS if row.id == "sequence_limited")
    given = (
        evidence("requests_waiting", 31)
        | evidence("kv_cache_usage_ratio", 0.08123)
        | evidence("ceiling", 1, "--max-num-seqs")
        | evidence("waited_seconds", 75)
        | evidence("tokens", 174720)
        | action(1, "add_replica", "Add a replica. Cost: it starts cold.")
        | action(2, "max_num_seqs", "--max-num-seqs 6.", restart="true")
        | action(1, "max_num_seqs", "--max-num-seqs 9.", engine="1")
        | evidence("requests_waiting", 7, engine="1")
        | evidence("requests_waiting", 8, instance="other:9477")
        | evidence("requests_waiting", 9, symptom="kv_exhausted")
    )
    written = Case("annotations", series(row, Stage.FIRING) | given, "3m").written()
    del written["promql_expr_test"]
    written["alert_rule_test"] = [
        {
            "eval_time": "3m",
            "alertname": "KVWatchSequenceLimited",
            "exp_alerts": [
                {
                    "exp_labels": told(row),
                    "exp_annotations": {
                        "summary": "Requests wait for batch slots.",
                        "description": (
                            f"gpu1, model llama, engine 0: {row.meaning}\n"
                            "Evidence: ceiling --max-num-seqs; kv cache usage ratio 0.0812; requests waiting 31;"
                            " tokens 174720; waited 1m 15s.\n"
                            "What to do:\n1. Add a replica. Cost: it starts cold.\n"
                            "2. --max-num-seqs 6. (needs a restart)"
                        ),
                        "runbook_url": "https://example.com/kvwatch/runbooks/kvwatchsequencelimited.md",
                    },
                }
            ],
        }
    ]
    run(tmp_path, [written])
