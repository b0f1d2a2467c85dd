"""A finding as text: what every surface shows of it."""

from dataclasses import replace

from kvwatch.core.export.finding_text import advice_sections, finding_text
from kvwatch.core.export.findings import findings
from kvwatch.core.judgement.advice.choose import Action, Advice
from kvwatch.core.judgement.advice.levers import RESTART_COST
from kvwatch.text.evidence import EvidenceText, evidence_texts
from tests.support.watch import replayed


def test_every_part_of_a_finding_is_there() -> None:
    (found, *_) = findings(replayed("0.32.0--c-kv-saturation").state)
    text = finding_text(found)
    assert text.heading == f"{found.severity.upper()}: {found.symptom.title}"
    assert (text.symptom, text.where) == ("kv_thrashing", ("t", "tiny-llama", "engine 0"))
    assert text.firing_for.endswith((" s", " min"))
    assert (text.meaning, text.causes) == (found.symptom.meaning, tuple(found.symptom.causes))
    assert text.advice == advice_sections(found.advice)
    assert text.advice[0][1][0] == f"1. {found.advice.actions[0].sentence}"
    assert text.explanation == ""
    assert len(text.evidence_line(2).split("; ")) == 2


def test_a_finding_of_a_whole_target_has_neither_model_nor_engine() -> None:
    (found, *_) = findings(replayed("0.32.0--c-kv-saturation").state)
    of_target = replace(found, key=found.key._replace(model_name="", engine=""), explained_by=("a", "b"))
    text = finding_text(of_target)
    assert text.where == ("t",)
    assert text.explanation == "Caused by a and b: fix those first."


def test_advice_has_steps_without_a_restart_first_then_those_with_one_then_what_not_to_do() -> None:
    now, later = (
        Action("cap", "Cap outputs", cost="cut off"),
        Action("seqs", "--max-num-seqs 4", restart=True),
    )
    warned = (("len", "lower the limit"),)
    assert advice_sections(Advice((now, later), warned)) == (
        ("Do now, no restart:", ("1. Cap outputs. Cost: cut off.",)),
        (f"With a restart ({RESTART_COST}):", ("2. --max-num-seqs 4.",)),
        ("Do not:", ("Lower the limit.",)),
    )
    assert advice_sections(Advice((now,))) == (("Do now:", ("1. Cap outputs. Cost: cut off.",)),)
    assert advice_sections(Advice()) == ()


def test_each_number_has_its_threshold() -> None:
    lines = evidence_texts(
        {
            "kv_cache_usage_ratio": 0.906,
            "threshold_usage_ratio": 0.95,
            "window_seconds": 120.0,
            "detail": "",
            "threshold_times": 4,
        }
    )
    assert lines[0] == EvidenceText(
        "KV cache usage", "91 %", "95 %", "kv_cache_usage_ratio", "threshold_usage_ratio"
    )
    assert lines[1].title == "Window"
    assert list(map(str, lines)) == [
        "KV cache usage 91 % (threshold 95 %)",
        "window 2 min",
        "times (threshold 4)",
    ]
