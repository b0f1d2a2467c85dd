"""What is written, wherever it goes: no secrets, nothing that a terminal obeys, whole on every stream."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from rich.console import Group

from kvwatch.cli import main
from kvwatch.commands import output
from kvwatch.commands.terminal_layout import actions
from kvwatch.core.judgement.advice.choose import Action, Advice

Kvwatch = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "a\x1b]0;x\x07\x9b31m\u202eé\nfake"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A server whose model is called as none should be, that breaks down."""
    name = ESCAPE.replace("\n", "\\n")
    page = (
        f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="{name}",engine="0"}} 1\n'
        f'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{model_name="{name}",engine="0"}} 9\n'
        '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc'
        f'{{model_name="{name}",engine="0"}} 1\n'
    )  # fmt: skip
    path = tmp_path / "r.jsonl"
    lines = [json.dumps({"t": t, "status": 200, "body": page}) for t in range(90)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_terminal_obeys_nothing_that_a_server_says(kvwatch: Kvwatch, recording: Path) -> None:
    done = kvwatch("replay", recording)
    assert done.returncode == 0
    assert "a\\u001b]0;x\\u0007\\u009b31m\\u202eé\\u000afake" in done.stdout
    for line in (done.stdout + done.stderr).split("\n"):
        assert line.isprintable()
        assert not line.startswith("fake")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_takes_all_of_it(
    kvwatch: Kvwatch, environ: dict[str, str], recording: Path, encoding: str
) -> None:
    assert kvwatch("run", "--help", PYTHONIOENCODING=encoding).returncode == 0
    assert kvwatch("replay", recording, PYTHONIOENCODING="ascii").returncode == 0
    done = subprocess.run(
        [*_command(), "replay", recording, "--json"],
        capture_output=True,
        check=True,
        env=environ | {"PYTHONIOENCODING": encoding},
    )
    found = json.loads(done.stdout.decode(encoding))
    assert found["engines"][0]["model_name"] == ESCAPE
    assert b"\x9b" not in done.stdout
    assert "é".encode() in done.stdout if encoding == "utf-8" else done.stdout.isascii()


def _command() -> list[str]:
    return [sys.executable, "-m", "kvwatch"]


def test_json_is_json_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"a": "".join(map(chr, range(256))) + "\u2028\U000e0001\ud800é", "n": float("nan")}
    output.print_json(data)
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.split("\n"))
    assert json.loads(said) == {"a": data["a"], "n": None}


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--show-config"),
        ("run", "--show-config", "--json"),
        ("run", "--interval", "0"),
        ("check", "--for", "1s"),
        ("record", "--for", "1s", "-o", "/nonexistent/x"),
    ],
)
def test_secrets_in_urls_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    names = ("token", "api_key", "X-Amz-Signature", "accessToken", "key")
    query = "&".join(f"{name}=gEheim'1" for name in names)
    monkeypatch.setenv("KVWATCH_TARGETS", f"http://127.0.0.1:9/metrics?x=1&{query}")
    main(list(words))
    said = capsys.readouterr()
    assert "127.0.0.1:9" in said.out or words[0] != "check"
    assert "gEheim" not in said.out + said.err


@pytest.mark.parametrize(
    "words",
    [
        ("check", "http://me:gEheim@gpu1"),
        ("check", "me:gEheim@gpu1"),
        ("check", "http://me:gE/gEheim@gpu1"),
        ("check", "ftp://gpu1/?token=gEheim"),
        ("run", "--targets", "a=ftp://me:gEheim@gpu1?api_key=gEheim"),
        ("run", "--api-token=gEheim"),
        ("run", "--api-token", "gEheim"),
        ("run", "-agEheim"),
        ("run", "--token=gEheim=x"),
        ("run", "--show-config=gEheim"),
        ("run", "--log-level", "http://me:gEheim@x"),
    ],
)
def test_mistakes_show_no_secrets(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.err.startswith("kvwatch: ")
    assert "gEheim" not in said.out + said.err


@pytest.mark.parametrize(
    "words", [("replay", "FILE"), ("replay", "FILE", "--json"), ("run", "--show-config"), ("run", "--help")]
)
@pytest.mark.parametrize("where", ["/dev/full", "closed"])
def test_an_output_that_takes_nothing_is_one_line(
    recording: Path, environ: dict[str, str], words: tuple[str, ...], where: str
) -> None:
    to = ">&-" if where == "closed" else f">{where}"
    line = " ".join([*_command(), *words, to]).replace("FILE", str(recording))
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("kvwatch: can't write the output: ")


def test_all_that_commands_say_goes_one_way() -> None:
    for path in (ROOT / "kvwatch" / "commands").glob("*.py"):
        if path.name != "output.py":
            assert not re.search(r"(?<![\w.])print\(|stdout\.write", path.read_text()), path


def test_options_of_vllm_are_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that a person copies is whole: lines break at spaces, not at hyphens."""
    advice = (
        "limit lengths to what the service really serves, not the maximum of the model: lower --max-model-len"
    )
    for width in range(30):
        output.draw(Group(*actions(Advice((Action("limit", f"{'x' * width} {advice}"),)))))
        assert capsys.readouterr().out.count("--max-model-len") == 1
