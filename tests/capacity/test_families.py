"""Sizes against vLLM's own: `oracle.py` asked a real vLLM 0.32, `answers.json` is what it said."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvwatch.capacity.families import FAMILIES
from kvwatch.capacity.kv_model import from_config
from tests.capacity.families import ANSWERS, HERE, QUESTIONS, as_vllm_says, config, planned, table


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_plan_is_what_vllm_reports(name: str) -> None:
    """Blocks, groups, tokens, requests at once and bytes of a request, all to the last digit."""
    assert as_vllm_says(planned(QUESTIONS[name])) == ANSWERS[name]


def test_families_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """At least ten models, shown in the output."""
    assert len({question["model"] for question in QUESTIONS.values()}) >= 10
    with capsys.disabled():
        print(f"\n\n{table(ANSWERS)}")


def test_every_architecture_has_an_answer_of_vllm_or_a_reason() -> None:
    """A number that nobody compared with vLLM's own code is a guess."""
    listed = [name for family in FAMILIES for name in family.architectures]
    asked = {config(question["model"])["architectures"][0] for question in QUESTIONS.values()}
    reasons = json.loads((HERE / "unasked.json").read_text(encoding="utf-8"))
    lacking = [name for name in listed if name not in asked and not reasons.get(name)]
    assert not lacking, (
        f"{', '.join(lacking)}: add a question to tests/capacity/questions.json and its config.json to models/,"
        " then run tests/capacity/oracle.py with the Python of a vLLM; or add the reason why not to"
        " tests/capacity/unasked.json"
    )
    stale = [name for name in reasons if name in asked or name not in listed]
    assert not stale, f"{', '.join(stale)}: remove from tests/capacity/unasked.json"


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("deepseek-v3", 671), ("falcon-7b", 7.2), ("gemma-2-9b", 9.24), ("gemma-3-27b", 27.0), ("gpt-oss-20b", 20.9),
        ("llama-3.1-8b", 8.03), ("mistral-7b-v0.1", 7.24), ("pythia-12b", 11.8), ("qwen1.5-7b", 7.72),
        ("qwen3-30b-a3b", 30.5), ("starcoder-15b", 15.5),
    ],
)  # fmt: skip
def test_parameters_are_estimated_within_three_per_cent(model: str, billions: float) -> None:
    """Against the published sizes."""
    assert from_config(config(model)).parameters == pytest.approx(billions * 1e9, rel=0.03)


@pytest.mark.parametrize("model", ["jamba-1.5-mini", "whisper-large-v3", "dbrx-132b", "gemma-3n-e4b"])
def test_what_has_other_matrices_is_not_estimated(model: str) -> None:
    assert from_config(config(model)).parameters is None


@pytest.mark.live
def test_vllm_still_answers_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Asks a real vLLM again: KVWATCH_VLLM_PYTHON is the Python of its environment."""
    python = os.environ.get("KVWATCH_VLLM_PYTHON")
    assert python, "set KVWATCH_VLLM_PYTHON to the Python of an environment with vLLM 0.32"
    done = subprocess.run(
        [python, Path(HERE, "oracle.py")], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout[done.stdout.index("{\n") :])
    with capsys.disabled():
        print(f"\n\n{table(answers)}")
    assert answers == ANSWERS
