"""Which target a command takes, and what it keeps of what the settings say of it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kvwatch.commands import check, live
from kvwatch.settings import TargetSettings

Kvwatch = Callable[..., CompletedProcess[str]]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("geheim")
    (tmp_path / "ca.pem").write_text("-")
    (tmp_path / "k.toml").write_text(
        f'[[targets]]\nname = "a"\nurl = "https://gpu1:8000"\ntoken_file = "{tmp_path}/token"\n'
        f'ca_file = "{tmp_path}/ca.pem"\ninsecure_tls = true\n'
    )
    return tmp_path / "k.toml"


def taken(*words: object) -> TargetSettings:
    parser = argparse.ArgumentParser()
    check.add(parser)
    return live.settings_of(parser.parse_args([str(word) for word in words]))[1]


@pytest.mark.parametrize("url", [(), ("https://GPU1:8000/metrics",), ("a=https://gpu1:8000",)])
@pytest.mark.parametrize("flags", [(), ("--max-num-seqs", "8")])
def test_a_configured_target_keeps_its_token_and_certificates(
    config: Path, url: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    target = taken(*url, "--config", config, *flags)
    assert target.token is not None
    assert target.token.get_secret_value() == "geheim"
    assert target.ca_file == config.parent / "ca.pem"
    assert target.insecure_tls
    assert target.name == "a"
    assert target.max_num_seqs == (8 if flags else None)


def test_another_server_gets_no_token(config: Path) -> None:
    for url in ("https://gpu2:8000", "http://gpu1:8000", "https://gpu1"):
        assert taken(url, "--config", config).token is None


def test_flags_come_before_what_is_configured(config: Path) -> None:
    other = config.parent / "other"
    other.write_text("anders")
    target = taken("b=https://gpu1:8000", "--config", config, "--token-file", other)
    assert target.name == "b"
    assert target.token is not None
    assert target.token.get_secret_value() == "anders"
    assert target.ca_file is not None


def test_wrong_configured_targets_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.toml").write_text('[[targets]]\nurl = "ftp://gpu1"\n')
    assert taken("gpu1", "--config", tmp_path / "k.toml").url == "http://gpu1/metrics"
    assert "not used here, but wrong: " in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5", "9" * 400])
@pytest.mark.parametrize("words", [("check",), ("record", "-o", "x"), ("replay", "x")])
def test_a_ceiling_that_can_not_be_is_a_mistake(kvwatch: Kvwatch, words: tuple[str, ...], wrong: str) -> None:
    done = kvwatch(*words, f"--max-num-seqs={wrong}")
    assert done.returncode == 2
    assert "must be a whole number from 1" in done.stderr


def test_replay_uses_the_settings_of_its_target(kvwatch: Kvwatch, config: Path, recordings: Path) -> None:
    recording = recordings / "0.32.0--a-idle.jsonl.gz"
    done = kvwatch("replay", recording, "--config", config, "--max-num-seqs", 8)
    assert (done.returncode, done.stderr) == (0, "")
    bad = kvwatch("replay", recording, "--target", "a b")
    assert bad.returncode == 2
    assert "a b: not a valid name; use up to 255" in bad.stderr


def test_a_port_that_can_not_be_is_a_mistake(kvwatch: Kvwatch) -> None:
    done = kvwatch("demo", "--port", "70000", "--for", "1s")
    assert done.returncode == 2
    assert "must be a whole number from 0 to 65535" in done.stderr
