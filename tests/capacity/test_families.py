"""Sizes against vLLM's own: `oracle.py` asked a real vLLM 0.32, `answers.json` is what it said."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.capacity.families import ANSWERS, HERE, QUESTIONS, as_vllm_says, planned, table


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_plan_is_what_vllm_reports(name: str) -> None:
    """Blocks, groups, tokens, requests at once and bytes of a request, all to the last digit."""
    assert as_vllm_says(planned(QUESTIONS[name])) == ANSWERS[name]


def test_families_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """At least ten models, shown in the output."""
    assert len({question["model"] for question in QUESTIONS.values()}) >= 10
    with capsys.disabled():
        print(f"\n\n{table(ANSWERS)}")


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
