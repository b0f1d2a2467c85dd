"""A log that is followed: as it grows, is rotated, cut off, or not there yet; and what `run` makes of it."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvwatch.core.export.findings import findings
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure, ScrapeError
from kvwatch.logs import LogReader
from kvwatch.logs.tail import Tail
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar.polling.server_log import LogStatus
from kvwatch.sidecar.service import serve
from tests.support.waiting import until

Real = Callable[[str], bytes]

BEGIN = b"INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.10.2\n"
NO_BLOCKS = b"ERROR 05-05 10:21:30 [core.py:718] ValueError: No available memory for the cache blocks.\n"
GROWN = (
    b"INFO 05-05 10:21:30 [x.py:1] Starting to load model\nINFO [x.py:1] GPU KV cache size: 9,000 tokens\n"
)


def read_verdict(tail: Tail) -> LogVerdict | None:
    tail.read_new()
    return tail.verdict()


@pytest.fixture
def closed_after() -> Iterator[Callable[[Tail], Tail]]:
    """Lets go of the files of those that no thread follows."""
    with contextlib.ExitStack() as stack:
        yield lambda tail: stack.enter_context(contextlib.closing(tail))


Closed = Callable[[Tail], Tail]


def test_a_log_is_followed_through_all_that_happens_to_it(tmp_path: Path, closed_after: Closed) -> None:
    file = tmp_path / "vllm.log"
    tail = closed_after(Tail(file))
    with pytest.raises(OSError, match=r"vllm\.log"):
        tail.read_new()
    file.write_bytes(BEGIN)
    assert read_verdict(tail) is None
    with file.open("ab") as more:
        more.write(NO_BLOCKS[:40])
    assert read_verdict(tail) is None
    with file.open("ab") as more:
        more.write(NO_BLOCKS[40:])
    found = read_verdict(tail)
    assert found is not None
    assert (found.verdict, found.line) == ("no_room_for_any_block", 2)
    file.rename(tmp_path / "vllm.log.1")
    file.write_bytes(BEGIN + GROWN)
    after = read_verdict(tail)
    assert after is not None
    assert (after.verdict, after.before and after.before.verdict) == ("ok", "no_room_for_any_block")
    file.write_bytes(BEGIN)  # cut off, and begun anew
    assert not read_verdict(tail)


def test_what_was_written_before_a_log_was_moved_away_is_read(tmp_path: Path, closed_after: Closed) -> None:
    """Also where it was the last that a server said, and nobody had looked since."""
    file = tmp_path / "vllm.log"
    file.write_bytes(BEGIN)
    tail = closed_after(Tail(file))
    tail.read_new()
    with file.open("ab") as more:
        more.write(NO_BLOCKS)
    file.rename(tmp_path / "vllm.log.1")
    file.write_bytes(BEGIN + GROWN)
    found = read_verdict(tail)
    assert found is not None
    assert (found.verdict, found.before and found.before.verdict) == ("ok", "no_room_for_any_block")
    file.unlink()
    with pytest.raises(FileNotFoundError):
        tail.read_new()
    file.write_bytes(BEGIN + NO_BLOCKS)
    again = read_verdict(tail)
    assert again is not None
    assert (again.verdict, again.line) == ("no_room_for_any_block", 2)


def test_a_log_that_was_cut_off_is_read_anew_though_it_has_grown_beyond(
    tmp_path: Path, closed_after: Closed
) -> None:
    """By size alone the new beginning would be missed, and with it the error."""
    file = tmp_path / "vllm.log"
    file.write_bytes(BEGIN)
    tail = closed_after(Tail(file))
    tail.read_new()
    file.write_bytes(b"INFO 05-05 11:00:00 [x.py:1] another line, and no shorter\n" + NO_BLOCKS)
    found = read_verdict(tail)
    assert found is not None
    assert (found.verdict, found.line) == ("no_room_for_any_block", 2)


def test_a_writer_that_goes_on_where_it_was_leaves_a_hole_that_is_passed_over(
    tmp_path: Path, closed_after: Closed
) -> None:
    """A log cut off under a writer that does not append begins with as many zeros as it had bytes."""
    file = tmp_path / "vllm.log"
    with file.open("wb", buffering=0) as writer:
        writer.write(BEGIN * 1000)
        tail = closed_after(Tail(file))
        tail.read_new()
        os.truncate(file, 0)
        tail.read_new()
        writer.write(NO_BLOCKS)
    assert file.read_bytes().startswith(b"\0" * 1000)
    found = read_verdict(tail)
    assert found is not None
    assert found.verdict == "no_room_for_any_block"


_STEPS = st.lists(
    st.sampled_from(["write", "write", "move away", "cut off", "cut short", "remove", "look", "look"]),
    max_size=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    _STEPS,
    st.lists(st.sampled_from([BEGIN, NO_BLOCKS, GROWN, b"\0", NO_BLOCKS[:40], b"x" * 5000]), min_size=12),
)
def test_the_newest_start_is_found_whatever_happens_to_the_file(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], texts: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("log") / "vllm.log"
    with contextlib.closing(Tail(file)) as tail:
        for step, text in zip(steps, texts, strict=False):
            if step == "write":
                with file.open("ab") as more:
                    more.write(text)
            elif step == "look":
                with contextlib.suppress(FileNotFoundError):
                    tail.read_new()
            elif file.exists():
                if step == "move away":
                    file.replace(file.with_suffix(".1"))
                elif step == "remove":
                    file.unlink()
                else:
                    os.truncate(file, 0 if step == "cut off" else file.stat().st_size // 2)
        with contextlib.suppress(FileNotFoundError):
            tail.read_new()
        with file.open("ab") as more:
            more.write(b"\n" + BEGIN + GROWN + BEGIN + NO_BLOCKS)
        found = read_verdict(tail)
    assert found is not None
    assert found.verdict == "no_room_for_any_block"


def test_what_is_no_file_is_said_and_holds_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe would hold the thread until somebody writes to it."""
    pipe, missing = tmp_path / "pipe", tmp_path / "missing"
    os.mkfifo(pipe)
    caplog.set_level(logging.INFO, logger="kvwatch")
    for path, said in ((pipe, "is not readable"), (tmp_path, "is not readable"), (missing, "does not exist")):
        with Tail(path, every_s=0.01) as tail:
            says = LogStatus("t", path, tail)
            until(f"a word about {path}", lambda tail=tail: tail.trouble(), 10, every_s=0.01)  # type: ignore[misc]
            for _ in range(3):
                assert says() is None
        (line,) = caplog.messages
        assert said in line
        caplog.clear()
    with Tail(missing, every_s=0.01) as tail:
        says = LogStatus("t", missing, tail)
        until("a word", tail.trouble, 10, every_s=0.01)
        says()
        missing.write_bytes(BEGIN + NO_BLOCKS)
        until("a verdict", says, 10, every_s=0.01)
    assert caplog.messages == [
        "server log does not exist yet",
        "server log is readable",
    ]


def test_an_error_of_the_reader_is_raised_once_and_later_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, feed = tmp_path / "vllm.log", LogReader.feed
    file.write_bytes(b"the line\n")

    def breaks(reader: LogReader, data: bytes) -> None:
        if b"the line" in data:
            raise ValueError("a mistake of kvwatch")
        feed(reader, data)

    monkeypatch.setattr(LogReader, "feed", breaks)
    raised = 0
    with Tail(file, every_s=0.01) as tail:

        def newest() -> LogVerdict | None:
            nonlocal raised
            try:
                return tail.newest()
            except ValueError:
                raised += 1
                return None

        until("what broke", lambda: newest() or raised, 10, every_s=0.01)
        with file.open("ab") as more:
            more.write(BEGIN + NO_BLOCKS)
        found = until("a verdict", newest, 10, every_s=0.01)
    assert (found.verdict, raised) == ("no_room_for_any_block", 1)


def test_a_thread_reads_beside_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "vllm.log"
    with Tail(file, every_s=0.01) as tail:
        assert tail.newest() is None
        file.write_bytes(BEGIN + NO_BLOCKS)
        for _ in range(500):
            if tail.newest() is not None:
                break
            asyncio.run(asyncio.sleep(0.01))
        found = tail.newest()
    assert found is not None
    assert found.verdict == "no_room_for_any_block"


def test_a_server_that_never_came_up_says_why_out_of_its_log() -> None:
    log = LogVerdict(
        "no_room_for_any_block", "high", "Nothing is left.", ("free the GPU",), 7, "ValueError: …"
    )
    state = initial("t", Policy(thresholds={"startup_kv_failure.for": 10}))
    for t in range(0, 20, 2):
        error = ScrapeError(Failure.REFUSED, "refused", float(t), log=log if t == 4 else None)
        state, _ = advance(state, error, float(t))
    (found,) = [one for one in findings(state) if one.symptom.id == "startup_kv_failure"]
    assert found.evidence["log_verdict"] == "no_room_for_any_block"
    assert found.evidence["log_line"] == 7
    assert [action.text for action in found.advice.actions] == ["free the GPU"]
    assert state.error is not None
    assert state.error.log is None


def test_a_start_that_is_fine_so_far_leaves_the_usual_advice() -> None:
    log = LogVerdict("ok", "low", "Nothing in the log says that the start failed.", ())
    state = initial("t", Policy(thresholds={"startup_kv_failure.for": 10}))
    for t in range(0, 20, 2):
        state, _ = advance(state, ScrapeError(Failure.REFUSED, "refused", float(t), log=log), float(t))
    (found,) = [one for one in findings(state) if one.symptom.id == "startup_kv_failure"]
    assert "log_verdict" not in found.evidence
    assert len(found.advice.actions) > 2


def test_the_sidecar_exports_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "vllm.log"
    file.write_bytes(BEGIN + NO_BLOCKS)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/metrics"
        settings_ = Settings(
            targets=[TargetSettings(name="t", url=url)],
            vllm_log=file,
            host="127.0.0.1",
            port=0,
            interval_s=0.1,
        )

        async def page() -> str:
            stop, served = asyncio.Event(), asyncio.get_running_loop().create_future()
            serving = asyncio.create_task(serve(settings_, stop=stop, ready=served.set_result, follow=Tail))
            where, text = await served, ""
            async with httpx.AsyncClient() as client:
                for _ in range(100):
                    text = (await client.get(f"{where}/metrics")).text
                    if "kvwatch_startup_verdict{" in text:
                        break
                    await asyncio.sleep(0.1)
            stop.set()
            await serving
            return text

        assert 'kvwatch_startup_verdict{target="t",verdict="no_room_for_any_block"} 1.0' in asyncio.run(
            page()
        )


def test_of_several_servers_each_has_its_own_log() -> None:
    one, two = TargetSettings(name="a", vllm_log=Path("a.log")), TargetSettings(name="b")
    settings = Settings(targets=[one, two])
    assert (settings.log_of(one), settings.log_of(two)) == (Path("a.log"), None)
    with pytest.raises(ValueError, match="ambiguous with several targets"):
        Settings(targets=[one, two], vllm_log=Path("c.log"))
    alone = Settings(targets=[two], vllm_log=Path("c.log"))
    assert alone.log_of(alone.targets[0]) == Path("c.log")
