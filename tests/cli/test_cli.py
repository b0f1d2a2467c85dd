"""What the command line says when asked, and when something is wrong. Never a traceback."""

import json
import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import kvwatch as package
from kvwatch.cli import COMMANDS, main

Kvwatch = Callable[..., CompletedProcess[str]]


def test_no_command_is_help(kvwatch: Kvwatch) -> None:
    done = kvwatch()
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"    {command} " in done.stdout
    assert kvwatch("--version").stdout == f"kvwatch {package.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_teaches_with_examples_and_exit_codes(kvwatch: Kvwatch, name: str) -> None:
    done = kvwatch(name, "--help")
    assert done.returncode == 0
    assert f"examples:\n  kvwatch {name}" in done.stdout
    assert "exit codes:" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "there is no command chek; did you mean check?"),
        (["run", "--intervall", "3"], "--intervall: no such option or argument; did you mean --interval?"),
        (["run", "--interval"], "argument --interval: expected one argument; `kvwatch run --help` explains"),
        (
            ["run", "--api-token", "x"],
            "--api-token: no such option or argument; did you mean --api-token-file?",
        ),
        (["run", "--port", "x", "--interval", "0"], "--interval 0: must be from 0.05 to 3600 seconds"),
        (["check", "http://me:geheim@gpu1"], "a URL must not contain a user name or password"),
        (["check", "--for", "soon"], "argument --for: soon: not a duration"),
        (["replay"], "the following arguments are required: FILE"),
        (["record", "gpu1"], "the following arguments are required: -o/--output"),
    ],
)
def test_a_mistake_is_one_line(kvwatch: Kvwatch, words: list[str], said: str) -> None:
    done = kvwatch(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "geheim" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert all(line.startswith("kvwatch: ") for line in done.stderr.splitlines())


def test_choices_and_separators_are_in_the_help(kvwatch: Kvwatch) -> None:
    said = " ".join(kvwatch("run", "--help").stdout.split())
    for part in (
        "--log-format {text,json}",
        "--log-level {debug,info,warning,error}",
        "--narrow {auto,never}",
        "as relays write them, separated by commas",
    ):
        assert part in said


def test_one_run_reports_all_mistakes(kvwatch: Kvwatch) -> None:
    words = "run --threshold foo=1 --threshold kv_thrashing.per_request=x --disable bogus --alias x=y --target ftp://a"
    done = kvwatch(*words.split(), "--target", '{"')
    assert done.returncode == 2
    for part in ("'foo' is", "per_request=x must be", "bogus is not", "x is not a signal; ", "ftp", "JSON"):
        assert part in done.stderr
    assert len(done.stderr.splitlines()) == 6


def test_what_render_writes_is_what_its_help_says(kvwatch: Kvwatch) -> None:
    for words in ([], ["render", "--help"]):
        said = " ".join(kvwatch(*words).stdout.lower().split())
        assert "write alerts/, dashboards/ and the tables of the documentation from the code" in said


def test_an_unexpected_error_is_a_line_and_a_traceback_only_if_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise RuntimeError("the moon\nis full")

    monkeypatch.setattr("kvwatch.commands.render.main", fail)
    monkeypatch.delenv("KVWATCH_DEBUG", raising=False)
    assert main(["render"]) == 70
    said = capsys.readouterr().err
    assert "unexpected RuntimeError: the moon is full" in said
    assert "KVWATCH_DEBUG=1" in said
    monkeypatch.setenv("KVWATCH_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["render"])


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(unread: Kvwatch, recordings: Path, more: list[str]) -> None:
    done = unread("replay", recordings / "0.32.0--c-kv-saturation.jsonl.gz", *more)
    assert (done.returncode, done.stderr) == (141, "")


def test_show_config_is_a_settings_file_with_origins(kvwatch: Kvwatch, tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('history = "20m"\n[[targets]]\nurl = "gpu1"\ntoken = "geheim"\n')
    done = kvwatch(
        "run", "--config", file, "--show-config", "--port", 80, KVWATCH_INTERVAL="2s", KVWATCH_TYPO="1"
    )
    assert done.returncode == 0
    assert f"history = 1200  # file: {file}: history" in done.stdout
    assert "interval = 2  # env: KVWATCH_INTERVAL" in done.stdout
    assert "port = 80  # flag: --port" in done.stdout
    assert "geheim" not in done.stdout
    assert done.stderr == "kvwatch: KVWATCH_TYPO is not a setting and is ignored\n"
    tomllib.loads(done.stdout)
    shown = json.loads(kvwatch("run", "--show-config", "--json").stdout)
    assert shown["interval"] == {"value": 1.0, "from": "default", "as": ""}


def test_run_ends_cleanly_at_a_signal(command: list[str], environ: dict[str, str]) -> None:
    words = [*command, "run", "--target", "127.0.0.1:9", "--host", "127.0.0.1", "--port", "0"]
    for told in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environ) as process:
            assert process.stderr is not None
            assert "kvwatch serves" in process.stderr.readline()
            process.send_signal(told)
            said = process.communicate(timeout=10)[1]
        assert process.returncode == 0
        assert "Traceback" not in said
