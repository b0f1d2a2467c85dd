"""The log of a server beside a real kvwatch: exchanged and taken away by SIGHUP, rotated and cut off meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sidecar import Sidecar, sidecar
from tests.support.stack import free_port
from tests.support.waiting import until

BEGIN = b"INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.10.2\n"
ERROR = b"(EngineCore_DP0 pid=77) ERROR 05-05 10:21:30 [core.py:718] "
#: What a log may come to, and how it says so.
ENDS = {
    "no_room_for_any_block": ERROR + b"ValueError: No available memory for the cache blocks.\n",
    "state_blocks_below_max_num_seqs": ERROR
    + b"ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (300).\n",
    "free_memory_grew_during_profiling": ERROR + b"AssertionError: Error in memory profiling. Initial free\n",
    "oom_sampler_warmup": ERROR
    + b"RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.\n",
}


def config(port: int, log: Path | None) -> str:
    vllm_log = f'vllm_log = "{log}"\n' if log else ""
    head = 'interval = 0.5\nbackoff_max = 0.5\ngpu = "off"\n[[targets]]\nname = "down"\n'
    return f'{head}url = "http://127.0.0.1:{port}/metrics"\n{vllm_log}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kvwatch")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def watch(folder: Path, port: int) -> Iterator[Sidecar]:
    """Of a server that is not there, with a log that is not there yet."""
    with sidecar(folder, config(port, folder / "first.log")) as watch:
        yield watch


def _verdicts(watch: Sidecar) -> set[str]:
    return set(watch.metrics().of("startup_verdict", "verdict"))


def _comes_to(watch: Sidecar, verdict: str) -> None:
    until(f"verdict {verdict}", lambda: _verdicts(watch) == {verdict}, 30)


def _reload(watch: Sidecar, text: str) -> None:
    before = watch.metrics().value("config_reloads_total", outcome="ok") or 0
    watch.config.write_text(text, encoding="utf-8")
    watch.hang_up()
    until("a reload", lambda: watch.metrics().value("config_reloads_total", outcome="ok") == before + 1, 30)


def _opened(watch: Sidecar) -> set[str]:
    """The logs that it holds open."""
    found = set()
    for link in Path(f"/proc/{watch.process.pid}/fd").iterdir():
        try:
            found.add(os.readlink(link))  # noqa: PTH115 - a file that is gone is no path
        except FileNotFoundError:
            continue
    return {one for one in found if ".log" in one}


def test_a_log_that_is_not_there_yet_is_read_when_it_is(folder: Path, watch: Sidecar) -> None:
    until("a word", lambda: "server log does not exist yet" in watch.logged(), 30)
    assert not _verdicts(watch)
    (folder / "first.log").write_bytes(BEGIN + ENDS["no_room_for_any_block"])
    _comes_to(watch, "no_room_for_any_block")
    assert "server log is readable" in watch.logged()


def test_a_log_that_is_moved_away_and_begun_anew_is_followed(folder: Path, watch: Sidecar) -> None:
    log = folder / "first.log"
    log.rename(folder / "first.log.1")
    log.write_bytes(BEGIN + ENDS["oom_sampler_warmup"])
    _comes_to(watch, "oom_sampler_warmup")
    until("the old one let go of", lambda: _opened(watch) == {str(log)}, 30)


def test_a_log_that_is_copied_and_cut_off_is_followed(folder: Path, watch: Sidecar) -> None:
    """The writer goes on appending; what it writes is more than was there before."""
    log = folder / "first.log"
    with log.open("ab", buffering=0) as writer:
        (folder / "first.log.2").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        writer.write(BEGIN * 20 + ENDS["free_memory_grew_during_profiling"])
        _comes_to(watch, "free_memory_grew_during_profiling")


def test_another_log_is_taken_by_a_reload_and_the_time_counted_stays(
    folder: Path, port: int, watch: Sidecar
) -> None:
    second = folder / "second.log"
    second.write_bytes(BEGIN + ENDS["state_blocks_below_max_num_seqs"])
    before = sum(watch.metrics().values("regime_seconds_total"))
    polls = watch.metrics().value("polls_total", target="down") or 0
    _reload(watch, config(port, second))
    _comes_to(watch, "state_blocks_below_max_num_seqs")
    until("the first let go of", lambda: _opened(watch) == {str(second)}, 30)
    assert sum(watch.metrics().values("regime_seconds_total")) >= before
    assert (watch.metrics().value("polls_total", target="down") or 0) > polls


def test_a_log_that_is_taken_away_tells_nothing_more(folder: Path, port: int, watch: Sidecar) -> None:
    _reload(watch, config(port, None))
    until("no verdict", lambda: not _verdicts(watch), 30)
    until("no log held", lambda: not _opened(watch), 30)
    _reload(watch, config(port, folder / "third.log"))
    assert not _verdicts(watch)
    (folder / "third.log").write_bytes(BEGIN + ENDS["no_room_for_any_block"])
    _comes_to(watch, "no_room_for_any_block")


def test_what_is_no_file_is_said_and_the_server_is_watched_on(
    folder: Path, port: int, watch: Sidecar
) -> None:
    pipe = folder / "pipe.log"
    os.mkfifo(pipe)
    _reload(watch, config(port, pipe))
    until("a word", lambda: "server log is not readable" in watch.logged(), 30)
    polls = watch.metrics().value("polls_total", target="down") or 0
    until("polls", lambda: (watch.metrics().value("polls_total", target="down") or 0) > polls + 2, 30)
    _reload(watch, config(port, folder / "first.log"))
    _comes_to(watch, "free_memory_grew_during_profiling")
    assert sum(watch.metrics().values("poll_errors_total")) == 0
    assert "Traceback" not in watch.logged()
