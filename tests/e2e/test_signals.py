"""Signals at every stage of a real process's life: while it loads, begins to serve, serves and stops."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.stack import free_port
from tests.support.waiting import until

MOMENTS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Since it could be told at all."""
NOBODY = "http://127.0.0.1:1/metrics"


def start(port: int, log: Path) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "kvwatch", "run", "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as out:
        return subprocess.Popen((*command, "--targets", NOBODY, "--gpu", "off"), stderr=out, stdout=out)


def has_a_say(process: subprocess.Popen[bytes]) -> bool:
    """Whether kvwatch got as far as to catch SIGTERM and SIGINT: before, the interpreter is on its own."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1 and caught >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_whenever_it_is_told_and_leaves_no_traceback(one: signal.Signals, tmp_path: Path) -> None:
    """With 0 once it serves; before, as whatever is ended by that signal. Told again while it stops, it stops too."""
    running = []
    for moment in MOMENTS_S:
        log = tmp_path / f"{moment}"
        running.append((moment, log, start(free_port(), log)))
    for _, _, process in running:
        until("handlers", lambda one=process: has_a_say(one), 30, every_s=0.005)  # type: ignore[misc]
    began = time.monotonic()
    for moment, _, process in running:
        time.sleep(max(began + moment - time.monotonic(), 0))
        process.send_signal(one)
    for _ in range(20):
        time.sleep(0.02)
        for _, _, process in running:
            process.send_signal(one)
    for moment, log, process in running:
        code, said = process.wait(timeout=30), log.read_text(encoding="utf-8")
        assert code in {0, -one, 128 + one}, f"{moment} s: {code}: {said}"
        assert "Traceback" not in said, f"{moment} s: {said}"
        if "kvwatch stops" in said:
            assert code == 0, f"{moment} s: {said}"


def test_a_reload_that_comes_before_it_serves_does_not_end_it(tmp_path: Path) -> None:
    process = start(free_port(), log := tmp_path / "log")

    def serves() -> bool:
        process.send_signal(signal.SIGHUP)
        return "kvwatch serves" in log.read_text(encoding="utf-8")

    try:
        until("handlers", lambda: has_a_say(process), 30, every_s=0.005)
        until("kvwatch that serves", serves, 60, every_s=0.02)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    port = free_port()
    first = start(port, log := tmp_path / "first")
    try:
        until("kvwatch that serves", lambda: "kvwatch serves" in log.read_text(encoding="utf-8"), 60)
        second = start(port, again := tmp_path / "second")
        assert second.wait(timeout=60) == 2
        said = again.read_text(encoding="utf-8")
        assert said.count("\n") == 1
        assert "address already in use" in said
        assert "choose another with --host and --port" in said
    finally:
        first.terminate()
        first.wait(timeout=30)
