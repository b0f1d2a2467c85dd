"""`check`, `record` and `demo` against real HTTP on loopback."""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from kvwatch.recording import Record, Writer, read

Kvwatch = Callable[..., CompletedProcess[str]]
Serve = Callable[..., str]
SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
IDLE = "0.32.0--a-idle.jsonl.gz"


def records_of(path: Path) -> list[Record]:
    return [record for record in read(path) if isinstance(record, Record)]


def test_check_of_a_server_that_is_fine(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    url = serve(recordings / IDLE)
    done = kvwatch("check", url.removeprefix("http://"), "--for", "1.5s", "--interval", "0.5", "--progress")
    assert done.returncode == 0
    assert "Fine: nothing is wrong" in done.stdout
    assert "Time per regime: idle 100%" in done.stdout
    assert re.search(r"KV usage +0%", done.stdout)
    assert re.search(r"prefix hit ratio +unknown: ", done.stdout)
    assert re.search(r"\d/4 ", done.stderr)


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


def test_record_ends_cleanly_at_ctrl_c(
    command: list[str], environ: dict[str, str], serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.jsonl.gz"
    words = [*command, "record", serve(recordings / IDLE), "-o", str(made), "--interval", "0.25"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        part = made.with_name("made.jsonl.gz.part")
        for _ in range(100):
            time.sleep(0.05)
            if part.exists() and part.stat().st_size and len(records_of(part)) >= 3:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert "scrapes over" in out
    assert len(records_of(made)) >= 3


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
    assert re.search(r"metrics +http://127\.0\.0\.1:\d+/metrics", text)
    fired = text.partition("kv_thrashing fires:")[2]
    for part in (
        "CRITICAL",
        "Evidence: kv cache usage ratio",
        "Likely causes:",
        "What to do, in this order:",
    ):
        assert part in fired
    said = [json.loads(line) for line in data.splitlines()]
    assert said[0]["port_in_use"] == port
    firing = next(one for one in said if one.get("transition", {}).get("to") == "firing")
    assert firing["findings"][0]["symptom"] == "kv_thrashing"


def test_demo_ends_when_nobody_reads_it(unread: Kvwatch) -> None:
    done = unread("demo", "--port", "0")
    assert (done.returncode, done.stderr) == (141, "")
