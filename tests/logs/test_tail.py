"""A log that is followed: as it grows, is rotated, cut off, or not there yet; and what `run` makes of it."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kvwatch.core.findings import findings
from kvwatch.core.outcome import Failure, ScrapeError
from kvwatch.core.pipeline import advance
from kvwatch.core.policy import Policy
from kvwatch.core.state import initial
from kvwatch.core.told import LogVerdict
from kvwatch.logs.tail import Tail
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar.service import serve

Real = Callable[[str], bytes]

BEGIN = b"INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.10.2\n"
NO_BLOCKS = b"ERROR 05-05 10:21:30 [core.py:718] ValueError: No available memory for the cache blocks.\n"
GROWN = (
    b"INFO 05-05 10:21:30 [x.py:1] Starting to load model\nINFO [x.py:1] GPU KV cache size: 9,000 tokens\n"
)


def told(tail: Tail) -> LogVerdict | None:
    tail.look()
    return tail.told()


def test_a_log_is_followed_through_all_that_happens_to_it(tmp_path: Path) -> None:
    file = tmp_path / "vllm.log"
    tail = Tail(file)
    with pytest.raises(OSError, match=r"vllm\.log"):
        tail.look()
    file.write_bytes(BEGIN)
    assert told(tail) is None
    with file.open("ab") as more:
        more.write(NO_BLOCKS[:40])
    assert told(tail) is None
    with file.open("ab") as more:
        more.write(NO_BLOCKS[40:])
    found = told(tail)
    assert found is not None
    assert (found.verdict, found.line) == ("no_room_for_any_block", 2)
    file.rename(tmp_path / "vllm.log.1")
    file.write_bytes(BEGIN + GROWN)
    after = told(tail)
    assert after is not None
    assert (after.verdict, after.before and after.before.verdict) == ("ok", "no_room_for_any_block")
    file.write_bytes(BEGIN)  # cut off, and begun anew
    assert not told(tail)


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
    assert found.actions == ("free the GPU",)
    assert state.error is not None
    assert state.error.log is None


def test_a_start_that_is_fine_so_far_leaves_the_usual_advice() -> None:
    log = LogVerdict("ok", "low", "Nothing in the log says that the start failed.", ())
    state = initial("t", Policy(thresholds={"startup_kv_failure.for": 10}))
    for t in range(0, 20, 2):
        state, _ = advance(state, ScrapeError(Failure.REFUSED, "refused", float(t), log=log), float(t))
    (found,) = [one for one in findings(state) if one.symptom.id == "startup_kv_failure"]
    assert "log_verdict" not in found.evidence
    assert len(found.actions) > 2


def test_the_sidecar_exports_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "vllm.log"
    file.write_bytes(BEGIN + NO_BLOCKS)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/metrics"
        settings = Settings(
            targets=[TargetSettings(name="t", url=url)],
            vllm_log=file,
            host="127.0.0.1",
            port=0,
            interval_s=0.1,
        )

        async def page() -> str:
            stop, served = asyncio.Event(), asyncio.get_running_loop().create_future()
            serving = asyncio.create_task(serve(settings, stop=stop, ready=served.set_result, follow=Tail))
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
    with pytest.raises(ValueError, match="several servers are watched"):
        Settings(targets=[one, two], vllm_log=Path("c.log"))
    alone = Settings(targets=[two], vllm_log=Path("c.log"))
    assert alone.log_of(alone.targets[0]) == Path("c.log")
