"""`kvwatch replay` as a program."""

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kvwatch.core.judgement.symptoms import SYMPTOMS

Kvwatch = Callable[..., CompletedProcess[str]]


@pytest.fixture
def replayed(kvwatch: Kvwatch, recordings: Path) -> Callable[..., dict[str, Any]]:
    def replay(name: str, *words: str) -> dict[str, Any]:
        done = kvwatch("replay", recordings / f"{name}.jsonl.gz", "--json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
        return found

    return replay


def test_json_has_the_documented_shape(replayed: Callable[..., dict[str, Any]]) -> None:
    found = replayed("0.32.0--c-kv-saturation")
    assert list(found) == [
        "samples", "failed_scrapes", "duration_s", "events", "transitions", "symptoms", "regimes", "gpus",
        "gpus_missing", "engines", "findings", "skipped", "notes",
    ]  # fmt: skip
    assert set(found["symptoms"]) == {row.id for row in SYMPTOMS}
    (fired,) = [one for name, one in found["symptoms"].items() if name == "kv_thrashing"]
    assert fired["fired"] is True
    assert 0 < fired["first_fired_s"] < found["duration_s"]
    assert 0 < fired["firing_s"] <= found["duration_s"] - fired["first_fired_s"] + 0.01
    never = found["symptoms"]["target_down"]
    assert never == {"fired": False, "first_fired_s": None, "firing_s": 0, "unknown_s": 0}
    assert sum(found["regimes"].values()) == pytest.approx(found["duration_s"], abs=0.1)
    assert found["regimes"]["kv_limited"] > 20
    change = next(one for one in found["transitions"] if one["to"] == "firing")
    assert change["t"] == fired["first_fired_s"]
    assert {"target", "model_name", "engine", "symptom", "from", "to", "evidence"} <= set(change)
    (engine,) = found["engines"]
    assert engine["target"] == "vllm"
    assert engine["derived"]["kv_cache_capacity_tokens"] > 0
    assert engine["config"]["block_size"] > 0
    for part in ("signals", "missing", "derived"):
        assert engine[part]


def test_time_adds_up_over_engines_that_come_and_go(replayed: Callable[..., dict[str, Any]]) -> None:
    found = replayed("0.32.0--j-data-parallel-2")
    assert len(found["engines"]) == 2
    assert found["duration_s"] < sum(found["regimes"].values()) <= 2 * found["duration_s"] + 0.1


def test_failures_are_counted_and_the_last_good_engines_are_kept(
    replayed: Callable[..., dict[str, Any]],
) -> None:
    found = replayed("0.32.0--o-engine-killed")
    assert found["failed_scrapes"] > 0
    assert found["engines"][0]["signals"]
    assert found["regimes"]["down"] > 0


def test_thresholds_and_disabling_change_what_is_found(replayed: Callable[..., dict[str, Any]]) -> None:
    name = "0.32.0--c-kv-saturation"
    stricter = replayed(name, "--threshold", "kv_thrashing.per_request=100", "--target", "gpu1")
    assert not stricter["symptoms"]["kv_thrashing"]["fired"]
    assert stricter["engines"][0]["target"] == "gpu1"
    off = replayed(name, "--disable", "kv_thrashing")
    assert off["symptoms"]["kv_thrashing"]["fired"] is False


def test_transcript_for_people_says_the_same(kvwatch: Kvwatch, recordings: Path) -> None:
    done = kvwatch("replay", recordings / "0.32.0--c-kv-saturation.jsonl.gz")
    assert done.returncode == 0
    assert "kv_thrashing  pending -> firing  " in done.stdout
    assert "CRITICAL  vllm / tiny-llama / engine 0: " in done.stdout
    assert "Do now, no restart:" in done.stdout
    assert "Time per regime: kv_limited" in done.stdout


def test_a_transcript_says_when_the_server_went_and_came_back(kvwatch: Kvwatch, recordings: Path) -> None:
    killed = kvwatch(
        "replay", recordings / "0.32.0--o-engine-killed.jsonl.gz", "--disable", "target_down"
    ).stdout
    assert re.search(r"\n +0:14  vllm  down  failure refused, detail URLError", killed)
    assert "up again" not in killed
    restarted = kvwatch("replay", recordings / "0.32.0--i-restart.jsonl.gz").stdout
    lines = [line.split("  ") for line in restarted.splitlines() if re.match(r" +\d+:\d\d  ", line)]
    told = [words[-2].strip() for words in lines if words[-3].strip() == "vllm"]
    assert [what for what in told if what in {"down", "up again", "restart"}] == [
        "down",
        "up again",
        "restart",
    ]
    assert "up again  down 45 s\n" in restarted
    events = json.loads(kvwatch("replay", recordings / "0.32.0--i-restart.jsonl.gz", "--json").stdout)[
        "events"
    ]
    assert [one["event"] for one in events] == ["engine_appeared", "down", "up_again", "restart"]
    assert events[2]["detail"] == {"down_seconds": pytest.approx(45, abs=0.5)}
    assert events[2]["t"] == events[3]["t"] == pytest.approx(84, abs=1)


def test_every_event_of_a_long_recording_is_printed(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    """Also those after so many that the state forgets the oldest."""
    with gzip.open(recordings / "0.32.0--i-restart.jsonl.gz") as lines:
        pages = [json.loads(line) for line in lines]
    first, last = pages[38], pages[-1]
    path = tmp_path / "r.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for i in range(230):
            for page, t in ((first, 60 * i), (last, 60 * i + 30)):
                file.write(json.dumps(page | {"t": t}) + "\n")
    assert kvwatch("replay", path).stdout.count("  restart  ") == 459


def test_what_is_empty_is_not_shown(kvwatch: Kvwatch, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    page = "# TYPE up gauge\nup 1\n"
    path.write_text("".join(json.dumps({"t": t, "status": 200, "body": page}) + "\n" for t in range(40)))
    done = kvwatch("replay", path)
    assert "signals_missing" in done.stdout
    assert "unknown families" not in done.stdout


def test_replay_is_not_stopped_by_settings_that_it_does_not_use(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    file = tmp_path / "k.toml"
    file.write_text("interval = 0\nnonsense = 1\n[thresholds]\nkv_exhausted.share = 0.4\n")
    words = ["replay", recordings / "0.32.0--a-idle.jsonl.gz", "--config", file]
    done = kvwatch(*words, KVWATCH_PORT="x", KVWATCH_INTERVL="3")
    assert done.returncode == 0
    said = done.stderr.splitlines()
    assert (
        said[0] == "kvwatch: KVWATCH_INTERVL is not a setting and is ignored; did you mean KVWATCH_INTERVAL?"
    )
    assert said[1].startswith("kvwatch: not used here, but wrong: ")
    assert len(said) == 2
    for part in (f"{file}: nonsense: unknown setting", f"{file}: interval 0: must", "KVWATCH_PORT x: must"):
        assert part in said[1]
    wrong = kvwatch(*words, KVWATCH_MIN_OBSERVATIONS="x", KVWATCH_TARGETS="ftp://x")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 2)


def test_an_outage_is_a_gap_whatever_the_pace_was_before(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    """A page every 15 s, later every second, then a hole of 25 s: that, and no more, was not watched."""
    with gzip.open(recordings / "0.32.0--a-idle.jsonl.gz") as lines:
        page = json.loads(next(lines))
    times = [*range(0, 1050, 15), *range(1050, 1100), *range(1125, 1160)]
    path = tmp_path / "r.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(page | {"t": 1e9 + t}) + "\n" for t in times)
    found = json.loads(kvwatch("replay", path, "--json").stdout)
    assert found["regimes"]["unknown"] == pytest.approx(16)
    assert "155 scrapes over 19:19, none failed; one every 1 to 15 s" in kvwatch("replay", path).stdout


def test_a_page_as_text_is_replayed(kvwatch: Kvwatch, tmp_path: Path, recordings: Path) -> None:
    with gzip.open(recordings / "0.32.0--a-idle.jsonl.gz") as lines:
        body = json.loads(next(lines))["body"]
    page = tmp_path / "page.prom"
    page.write_text(body)
    done = kvwatch("replay", page, "--json")
    assert json.loads(done.stdout)["samples"] == 1
    assert done.returncode == 0


def test_broken_lines_are_skipped_and_listed(kvwatch: Kvwatch, tmp_path: Path, recordings: Path) -> None:
    lines = gzip.decompress((recordings / "0.32.0--a-idle.jsonl.gz").read_bytes()).splitlines(keepends=True)
    path = tmp_path / "r.jsonl.gz"
    packed = gzip.compress(
        lines[0] + b"{broken\n" + lines[1] + b'{"t": 1e12, "status": 200, "body": "\\u0000#"}\n'
    )
    path.write_bytes(packed[:-8])
    found = json.loads(kvwatch("replay", path, "--json").stdout)
    assert found["samples"] == 3
    assert found["failed_scrapes"] == 1
    assert [one["line"] for one in found["skipped"]][:1] == [2]
    assert "Skipped, not readable: 2\n  not JSON: line 2" in kvwatch("replay", path).stdout


def test_nothing_to_replay_is_an_error_with_the_reason(kvwatch: Kvwatch, tmp_path: Path) -> None:
    missing = kvwatch("replay", tmp_path / "no")
    assert (missing.returncode, missing.stderr) == (
        2,
        f"kvwatch: can't read {tmp_path}/no: No such file or directory\n",
    )
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"\xff\x00" * 100)
    done = kvwatch("replay", rubbish)
    assert done.returncode == 2
    assert "not UTF-8: line 1" in done.stdout or "not JSON: line 1" in done.stdout


def test_an_hour_takes_seconds(kvwatch: Kvwatch, tmp_path: Path, recordings: Path) -> None:
    lines = gzip.decompress((recordings / "0.32.0--c-kv-saturation.jsonl.gz").read_bytes()).splitlines()
    items = [json.loads(line) for line in lines]
    path = tmp_path / "hour.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for i in range(3600):
            file.write(json.dumps(items[i % len(items)] | {"t": 1e9 + i}) + "\n")
    assert json.loads(kvwatch("replay", path, "--json", timeout=60).stdout)["samples"] == 3600


def test_standard_input_is_a_recording_as_any(
    command: list[str], environ: dict[str, str], recordings: Path
) -> None:
    path = recordings / "0.32.0--a-idle.jsonl.gz"
    told = []
    for words in (["-"], ["/dev/stdin"], [str(path)]):
        done = subprocess.run(
            [*command, "replay", *words, "--json"],
            input=path.read_bytes(),
            capture_output=True,
            env=environ,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        told.append(json.loads(done.stdout))
    assert told[0] == told[1] == told[2]


def test_what_comes_after_a_clock_was_put_back_is_judged(
    kvwatch: Kvwatch, recordings: Path, tmp_path: Path
) -> None:
    lines = gzip.open(recordings / "0.32.0--c-kv-saturation.jsonl.gz", "rt").readlines()  # noqa: SIM115
    fields = [json.loads(text) for text in lines]
    for one in fields[5:]:
        one["t"] -= 3600
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in fields))
    found = json.loads(kvwatch("replay", path, "--json").stdout)
    assert found["symptoms"]["kv_thrashing"]["fired"]
    assert found["duration_s"] > 60
    (note,) = found["notes"]
    assert "the clock of the recording went back by 3" in note["text"]
    assert note["text"] in kvwatch("replay", path).stdout
