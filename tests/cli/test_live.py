"""`check`, `record` and `demo` against real HTTP on loopback."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import httpx
import pytest

from kvwatch.recording import Record, Writer, read
from tests.support.waiting import until

Kvwatch = Callable[..., CompletedProcess[str]]
Serve = Callable[..., str]
SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
IDLE = "0.32.0--a-idle.jsonl.gz"
QUEUED = "0.32.0--d-queue-no-cache-pressure.jsonl.gz"
HEALTHY = "0.32.0--b-healthy.jsonl.gz"


def records_of(path: Path) -> list[Record]:
    return [record for record in read(path) if isinstance(record, Record)]


def watched(said: str, scrapes: int) -> str:
    """The time that a report says it watched for: of as many scrapes as asked for, a second apart, or one less where
    a busy machine had the last come too late."""
    found = re.search(r"(\d+) scrapes over (\d:\d\d), none failed", said)
    assert found, said
    made = int(found[1])
    assert scrapes - 1 <= made <= scrapes
    assert found[2] == f"0:{made - 1:02}"
    return found[2]


def test_check_of_a_server_that_is_fine(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    url = serve(recordings / IDLE)
    words = ["check", url.removeprefix("http://"), "--for", "10s", "--interval", "0.5", "--progress"]
    done = kvwatch(*words)
    assert done.returncode == 0
    assert done.stdout == (
        f"Fine: nothing is wrong with {url} (idle 100 % (0:10); KV usage 0 %, 0 running, 0 waiting)\n"
    )
    done = kvwatch(*words, "--all")
    assert done.stdout.startswith("Fine: nothing is wrong\n")
    assert "Time per regime: idle 100 %" in done.stdout
    assert re.search(r"KV usage +0 %", done.stdout)
    assert re.search(r"prefix hit rate +unknown: ", done.stdout)
    assert re.search(r"\d/21 ", done.stderr)


def test_check_of_servers_that_hold_requests_back(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path
) -> None:
    """No finding has its window full yet, and yet nothing is fine; all at once, since each takes its time."""
    more = {
        "saturated": [serve(recordings / SATURATED, begin=45), "--disable", "kv_thrashing"],
        "queued": [serve(recordings / QUEUED, begin=30), "--json", "--max-num-seqs", "4"],
        "healthy": [serve(recordings / HEALTHY, begin=20), "--json"],
        "short": [serve(recordings / SATURATED, begin=45), "--for", "1s", "--disable", "kv_thrashing"],
    }
    words = [*command, "check", "--for", "12s"]
    running = {
        name: subprocess.Popen([*words, *given], stdout=subprocess.PIPE, text=True, env=environ)
        for name, given in more.items()
    }
    said = {name: process.communicate(timeout=60)[0] for name, process in running.items()}
    assert {name: process.returncode for name, process in running.items()} == {
        "saturated": 1,
        "queued": 1,
        "healthy": 0,
        "short": 2,
    }
    for_s = watched(said["saturated"], 13)
    told = f"requests waited for the KV cache for 100 % of {for_s}; kv_exhausted needs more than 30 s"
    assert "\nWaiting requests:\n  127.0.0.1" in said["saturated"]
    assert said["saturated"].startswith(f"Pending: {told} within a minute: watch longer, --for 90s\n")
    queued = json.loads(said["queued"])
    assert queued["verdict"] == "pending"
    (limited,) = queued["limited"]
    assert (limited["regime"], limited["symptom"]) == ("sequence_limited", "sequence_limited")
    assert limited["share"] > 0.5
    healthy = json.loads(said["healthy"])
    assert (healthy["verdict"], healthy["exit_code"], healthy["limited"]) == ("fine", 0, [])
    short = watched(said["short"], 2)
    assert said["short"].startswith(f"Unknown: watched too short: {short} of at least 0:10 (see --for)\n")


def test_the_checklist_says_what_is_shown_and_what_only_the_operator_knows(
    kvwatch: Kvwatch, serve: Serve, recordings: Path
) -> None:
    url = serve(recordings / HEALTHY, begin=40)
    words = ["check", url, "--for", "2s", "--checklist"]
    done = kvwatch(*words)
    for line in ("Checklist", "what only you know", "8,192 tokens", "497", "4.1 times", "FP8"):
        assert line in done.stdout
    points = json.loads(kvwatch(*words, "--json").stdout)["checklist"]
    assert [one["mark"] for one in points] == ["yours", "shown", "look", "yours", "shown", "yours", "yours"]
    assert all(
        one["shown"][0]["engine"] == "0" and one["shown"][0]["text"] and one["yours"] for one in points
    )
    assert "checklist" not in json.loads(kvwatch(*words[:-1], "--json").stdout)


def test_watch_prints_each_change_until_it_is_stopped(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path
) -> None:
    url = serve(recordings / SATURATED, begin=20, speed=8)
    holds = ["--threshold", "kv_thrashing.for=0,kv_thrashing.preemptions=1", "--disable", "kv_exhausted"]
    words = [*command, "check", url, "--watch", "--json", "--interval", "250ms", *holds]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ) as running:
        assert running.stdout is not None
        verdicts = []
        for line in running.stdout:
            verdicts.append(json.loads(line)["verdict"])
            if verdicts[-1] == "findings":
                running.send_signal(signal.SIGINT)
                break
        assert running.stdout.read() == ""
    assert running.returncode == 1
    assert len(verdicts) >= 2
    assert verdicts[0] != "findings"


@pytest.mark.parametrize("colours", [True, False])
def test_in_a_terminal_it_is_coloured_and_fits(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path, colours: bool
) -> None:
    url = serve(recordings / SATURATED, begin=45)
    words = [*command, "check", url, "--for", "2s", "--no-progress", "--checklist"]
    variables = {"TERM": "xterm-256color", "COLUMNS": "72"} | ({} if colours else {"NO_COLOR": "1"})
    said = in_terminal(words, environ | variables)
    assert ("\x1b[" in said) is colours
    assert "Checklist" in said
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    table = plain.partition("Checklist")[2].splitlines()
    assert max(map(len, table)) <= 72


def test_on_a_screen_it_goes_on_until_it_is_stopped_and_leaves_the_report(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path
) -> None:
    url = serve(recordings / HEALTHY, begin=30)
    words = [*command, "check", url, "--watch", "--interval", "250ms"]
    said = in_terminal(words, environ | {"TERM": "xterm"}, until=": watched too short")
    assert "\x1b[?1049h" in said  # a screen of its own
    left = re.sub(r"\x1b\[[0-9;]*m", "", said.rpartition("\x1b[?1049l")[2])
    assert left.startswith("Unknown: watched too short") or "\nUnknown: watched too short" in left


def in_terminal(words: list[str], environ: dict[str, str], until: str = "") -> str:
    """What a command says in a terminal; stopped by Ctrl-C once it has said `until`, if that is given."""
    ours, theirs = pty.openpty()
    words = ["timeout", "--signal=KILL", "60", *words]  # what hangs fails
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=environ) as running:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # its end is an error on Linux
            while piece := os.read(ours, 4096):
                said += piece
                if until and until.encode() in said and running.poll() is None:
                    running.send_signal(signal.SIGINT)
                    until = ""
    os.close(ours)
    return said.decode()


def test_check_is_not_stopped_by_settings_that_it_does_not_use(
    kvwatch: Kvwatch, serve: Serve, recordings: Path
) -> None:
    words = ["check", serve(recordings / IDLE), "--for", "1s", "--json"]
    done = kvwatch(*words, KVWATCH_PORT="x", KVWATCH_DUTY_CYCLE="7", KVWATCH_TARGETS="ftp://x")
    assert json.loads(done.stdout)["samples"] == 2
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert said[0].startswith("kvwatch: not used here, but wrong: KVWATCH_DUTY_CYCLE 7: ")
    assert "KVWATCH_PORT x: must be a whole number" in said[0]
    assert said[1].startswith("kvwatch: not used here, but wrong: KVWATCH_TARGETS, target 1 url ftp://x: ")
    wrong = kvwatch(*words, KVWATCH_HISTORY="x", KVWATCH_PORT="x")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    assert wrong.stderr.startswith("kvwatch: KVWATCH_HISTORY x: not a duration")


def test_check_of_a_server_in_trouble(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    url = serve(recordings / SATURATED, begin=40, speed=8)
    holds = ["--threshold", "kv_exhausted.for=0,kv_thrashing.for=0,kv_thrashing.preemptions=1"]
    done = kvwatch("check", url, "--for", "4s", "--interval", "250ms", *holds, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert found["verdict"] == "findings"
    assert {one["symptom"] for one in found["findings"]} & {"kv_exhausted", "kv_thrashing"}
    assert found["findings"][0]["evidence"]
    assert found["findings"][0]["actions"]


def test_check_says_what_is_on_the_way(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    url = serve(recordings / SATURATED, begin=40, speed=8)
    holds = [
        "--threshold",
        "kv_thrashing.for=600,kv_thrashing.preemptions=1",
        "--disable",
        "kv_exhausted,kv_near_full",
    ]
    done = kvwatch("check", url, "--for", "4s", "--interval", "250ms", *holds)
    assert done.returncode == 1
    assert "kv_thrashing on 127.0.0.1" in done.stdout.partition("Pending")[2]


def test_check_of_nothing(kvwatch: Kvwatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = kvwatch("check", f"127.0.0.1:{port}", "--for", "1s", "--interval", "1s", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 2
    assert found["verdict"] == "unknown"
    assert "refused" in found["why"]


def test_record_makes_a_recording_with_what_failed_in_it(
    kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    bodies = [record.body for record in records_of(recordings / IDLE)]
    source = tmp_path / "source.jsonl.gz"
    with Writer(source) as writer:
        for t, status in enumerate((200, 200, 0, 503, 200, 200)):
            writer.write(Record(t, status, bodies[t] if status == 200 else b"", error="" if status else "x"))
    made = tmp_path / "made.jsonl.gz"
    words = ["record", serve(source, speed=2), "-o", made, "--for", "2.75s", "--interval", "0.25"]
    done = kvwatch(*words, "--json", "--progress")
    summary = json.loads(done.stdout)
    assert done.returncode == 0
    assert re.search(r"\d/12 ", done.stderr)
    records = records_of(made)
    assert summary["samples"] == len(records) >= 9
    assert summary["bytes"] == made.stat().st_size
    assert {record.status for record in records} == {0, 200, 503}
    assert records[0].body == bodies[0]
    assert summary["failed_scrapes"] == sum(record.status != 200 for record in records)
    again = kvwatch(*words)
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    assert kvwatch(*words, "--force", "--for", "0.25").returncode == 0


def test_record_of_nothing_leaves_nothing_and_says_why(
    kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = tmp_path / "made.jsonl.gz"
    words = ["-o", made, "--for", "1s", "--interval", "0.5"]
    done = kvwatch("record", f"127.0.0.1:{port}", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"127.0.0.1:{port}/metrics succeeded, so {made} was not written: refused (" in done.stderr
    assert list(tmp_path.iterdir()) == []
    data = json.loads(kvwatch("record", f"127.0.0.1:{port}", *words, "--json").stdout)
    assert (data["file"], data["samples"], data["failed_scrapes"]) == (None, 3, 3)
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    assert kvwatch("record", "https://127.0.0.1:1", *words, "--ca-file", bad).returncode == 2
    assert list(tmp_path.iterdir()) == [bad]
    assert kvwatch("record", serve(recordings / IDLE), *words).returncode == 0
    before = made.read_bytes()
    assert kvwatch("record", f"127.0.0.1:{port}", *words, "--force").returncode == 2
    assert made.read_bytes() == before


def test_record_ends_cleanly_at_ctrl_c(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.jsonl.gz"
    words = [*command, "record", serve(recordings / IDLE), "-o", str(made), "--interval", "0.25"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        part = made.with_name("made.jsonl.gz.part")
        until(
            "third record",
            lambda: part.exists() and part.stat().st_size > 0 and len(records_of(part)) >= 3,
            within_s=20,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert "scrapes over" in out
    assert len(records_of(made)) >= 3


def test_record_marks_the_warm_up_names_the_run_and_shows_live_figures(
    kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.jsonl.gz"
    words = ["record", serve(recordings / SATURATED, begin=40), "-o", made, "--interval", "0.5"]
    run = ["--label", "half the cache", "--warmup", "1s", "--for", "3s"]
    done = kvwatch(*words, *run, "--json", "--progress")
    records = records_of(made)
    assert [record.label for record in records] == ["half the cache"] + [""] * (len(records) - 1)
    marks = [record.warmup for record in records]
    assert marks == sorted(marks, reverse=True)
    assert marks[0]
    assert all(record.t - records[0].t < 2 for record in records if record.warmup)
    assert records[-1].t - records[0].t > 3
    summary = json.loads(done.stdout)
    assert (summary["label"], summary["warmup_samples"]) == ("half the cache", sum(marks))
    assert "scrapes/s, warm-up, " in done.stderr
    assert re.search(r"running \d+, waiting \d+, KV \d+ %, [\d,]+ tokens/s, \d failed, \d+ kB", done.stderr)
    short = kvwatch(*words, "--force", "--warmup", "60s", "--for", "1s", "--max-size", "8kB")
    assert short.returncode == 0
    assert "of them warm-up" in short.stdout
    said = short.stderr.splitlines()
    assert re.fullmatch(r"kvwatch: ended at \d+ kB: the next scrape might exceed --max-size", said[0])
    assert said[1:] == ["kvwatch: ended during the warm-up: the recording has nothing to compare"]
    assert made.stat().st_size <= 8_000
    assert len(records_of(made)) >= 2


def test_record_rejects_wrong_options(kvwatch: Kvwatch, tmp_path: Path) -> None:
    for words, told in (
        (["--label", " "], "argument --label: ' ': must be 1 to 100 printable characters"),
        (["--max-size", "0"], "argument --max-size: 0: must be above 0"),
        (["--max-size", "much"], "argument --max-size: much: not a size"),
        (["--warmup", "soon"], "argument --warmup: soon: not a duration"),
    ):
        done = kvwatch("record", "-o", tmp_path / "r", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert told in done.stderr


def test_demo_shows_a_symptom_with_evidence_and_what_to_do(
    command: list[str], environ: dict[str, str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [*command, "demo", "--for", "9s", "--port", str(port)]
        both = [
            subprocess.Popen(
                words + more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
            )
            for more in ([], ["--json"])
        ]
        (text, wrong), (data, wrong_too) = (process.communicate(timeout=60) for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert wrong == wrong_too == ""
    assert f"Port {port} is in use" in text
    assert "clocks in the page, /metrics and the API also run 5 times as fast" in text.partition("Ctrl-C")[0]
    assert re.search(r"metrics +http://127\.0\.0\.1:\d+/metrics", text)
    fired = text.partition("  kv_thrashing  pending -> firing  ")[2]
    parts = (
        "  demo / tiny-llama / engine 0: ",
        "Do now, no restart:",
        "With a restart",
        "Do not:",
        "Evidence:",
        "Likely causes:",
    )
    places = [fired.find(part) for part in parts]
    assert places == sorted(places)
    assert places[0] > 0
    assert text.count("  Do now, no restart:\n") == 1
    assert "Nothing needs changing" not in text
    assert text.endswith("Try it on your own server:\n  kvwatch check http://localhost:8000\n")
    said = [json.loads(line) for line in data.splitlines()]
    assert said[0]["port_in_use"] == port
    assert said[1]["clock_speed"] == 5
    firing = next(one for one in said if one.get("transition", {}).get("to") == "firing")
    assert firing["findings"][0]["symptom"] == "kv_thrashing"
    assert said[-1]["fired"]["kv_thrashing"] == 1


def test_the_recorded_vllm_alone_serves_its_page_until_a_signal(
    command: list[str], environ: dict[str, str], kvwatch: Kvwatch
) -> None:
    """Its page has vLLM's names; a port that is in use is one line with the remedy."""
    words = [*command, "demo", "--server-only", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout
        try:
            url = json.loads(process.stdout.readline())["metrics"]
            assert url.startswith("http://127.0.0.1:")
            page = httpx.get(url, trust_env=False).text
            taken = kvwatch("demo", "--server-only", "--port", url.split(":")[2].split("/")[0])
        finally:
            process.terminate()
    assert process.returncode == 0
    assert "\nvllm:kv_cache_usage_perc{" in page
    assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
    assert "choose others with --host and --port" in taken.stderr


def test_demo_ends_when_nobody_reads_it(unread: Kvwatch) -> None:
    done = unread("demo", "--port", "0")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_ends_a_recording_that_is_kept(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    url, path = serve(recordings / SATURATED, begin=40, speed=8), tmp_path / "r.gz"
    words = " ".join([*command, "record", url, "-o", str(path), "--for", "30s", "--interval", "0.1"])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 24; {words}"],  # in blocks of 512 bytes
        capture_output=True,
        text=True,
        timeout=60,
        env=environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"kvwatch: can't write .*: File too large; .* holds what was recorded before\n", done.stderr
    )
    assert f": {len(records_of(path))} scrapes over" in done.stdout


MIG = Path(__file__).parents[1] / "data" / "dcgm" / "mig.prom"


def test_gpus_are_checked_recorded_and_replayed(
    kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    """A DCGM exporter beside a server, both over real HTTP; the recording has the server's GPUs only."""
    url, exporter = serve(recordings / HEALTHY), serve(MIG)
    gpus = (
        "--gpu-url",
        exporter,
        "--gpu-interval",
        "0.5",
        "--gpus",
        "0/1,GPU-7099682b-a20d-2bcc-74ab-b9060454d81e",
    )
    checked = kvwatch("check", url, "--for", "2s", *gpus)
    assert (
        "GPU 0/1                    SMs active 64 %, memory active 80 %, utilisation 99 %" in checked.stdout
    )
    assert "GPU 0/7" not in checked.stdout
    path = tmp_path / "r.jsonl.gz"
    assert kvwatch("record", url, "-o", path, "--for", "3s", *gpus).returncode == 0
    read_gpus = [record.gpu for record in records_of(path) if record.gpu]
    assert read_gpus
    assert [gpu.label for gpu in read_gpus[-1].gpus] == ["0/1", "1"]
    found = json.loads(kvwatch("replay", path, "--json").stdout)
    assert [(gpu["gpu"], gpu["source"]) for gpu in found["gpus"]] == [("0/1", "dcgm"), ("1", "dcgm")]
    assert found["gpus"][0]["sm_active_ratio"] == 0.641115
    assert found["gpus_missing"] is None


def test_only_the_json_reports_missing_gpu_data(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    url = serve(recordings / HEALTHY)
    done = kvwatch("check", url, "--for", "2s", "--json", "--gpu", "off")
    found = json.loads(done.stdout)
    assert (found["gpus"], found["gpus_missing"]) == (
        [],
        "no GPU data: GPU readings are turned off (gpu = off)",
    )
    assert done.stderr == ""
    plain = kvwatch("check", url, "--for", "2s", "--gpu", "off")
    assert "GPU" not in plain.stdout + plain.stderr
