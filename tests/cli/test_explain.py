"""`kvwatch explain` as a program."""

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Kvwatch = Callable[..., CompletedProcess[str]]

LOGS = Path(__file__).resolve().parents[1] / "captures" / "vllm-0.32.0" / "logs"


def test_text_and_json_show_the_same(kvwatch: Kvwatch) -> None:
    file = LOGS / "startup-failure-blocks-override.log"
    shown = kvwatch("explain", file)
    data = json.loads(kvwatch("explain", file, "--json").stdout)
    assert shown.returncode == data["exit_code"] == 1
    assert list(data)[:7] == ["verdict", "confidence", "meaning", "facts", "evidence", "actions", "symptoms"]
    words = " ".join(shown.stdout.split())
    assert f"{data['verdict']} (certain)" in words
    for action in data["actions"]:
        assert action in words
    for line in data["evidence"]:
        assert f"{line['line']}: {line['text']}" in words


def test_symptoms_come_with_evidence_and_confidence(kvwatch: Kvwatch) -> None:
    done = kvwatch("explain", LOGS / "server-c-kv-saturation.log", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, "ok")
    for one in found["symptoms"]:
        assert {"symptom", "evidence", "confidence", "actions", "explained_by"} <= set(one)
        assert one["evidence"]["requests_waiting"] > 0
    people = kvwatch("explain", LOGS / "server-c-kv-saturation.log").stdout
    assert "Caused by kv_thrashing" in people


def test_a_gzipped_log_and_one_through_a_pipe(kvwatch: Kvwatch, command: list[str], tmp_path: Path) -> None:
    log = (LOGS / "startup-failure-block-size.log").read_bytes()
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress(log))
    assert "block_size_unsupported" in kvwatch("explain", packed).stdout
    piped = subprocess.run([*command, "explain", "-"], input=log, capture_output=True, check=False)
    assert piped.stdout.startswith(b"standard input: block_size_unsupported")
    packed.write_bytes(gzip.compress(log)[:-400])
    cut = kvwatch("explain", packed, "--json")
    assert "cut short" in json.loads(cut.stdout)["notes"][-1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "It is empty."),
        (b"\0\1\2\3" * 2000, "It is binary"),
        (b"GET / 200\n" * 99, "No line of this log is from vLLM"),
    ],
)
def test_what_is_no_log_is_said_in_a_sentence(
    data: bytes, said: str, kvwatch: Kvwatch, tmp_path: Path
) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(data)
    done = kvwatch("explain", file)
    assert done.returncode == 2
    assert "no_vllm_log" in done.stdout
    assert said in done.stdout
    assert done.stdout.count("\n") == 2


def test_a_file_that_is_not_there(kvwatch: Kvwatch, tmp_path: Path) -> None:
    done = kvwatch("explain", tmp_path / "none.log")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "No such file" in done.stderr
