"""The real kvwatch beside a server that answers slowly for a while: it asks less often, says so, and comes back."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.replica.running import replica
from tests.support.stack import answers, free_port, kvwatch
from tests.support.waiting import until

_SLOW_S = 0.1
_SHARE = 0.2


def test_a_slow_server_is_asked_less_often_and_a_quick_one_again_as_before(tmp_path: Path) -> None:
    """The share of the server's time, by kvwatch's own numbers, stays under what is set, here a fifth."""
    port, base = free_port(), 0.25
    with replica(slow=True) as server:
        command = ("run", "--host=127.0.0.1", f"--port={port}", f"--targets={server.url}", "--gpu=off")
        paced = (f"--interval={base}", "--timeout=0.24", f"--duty-cycle={_SHARE}", "--max-interval=5")
        with kvwatch(tmp_path / "log", *command, *paced):
            mine = f"http://127.0.0.1:{port}/metrics"
            until("answer of kvwatch", lambda: answers(mine), 60)

            def interval() -> float:
                lines = httpx.get(mine, timeout=5).text.splitlines()
                (line,) = [one for one in lines if one.startswith("kvwatch_scrape_interval_seconds{")]
                return float(line.rpartition(" ")[2])

            httpx.put(f"{server.url}/slowness/{_SLOW_S}", timeout=10).raise_for_status()
            stretched = until(
                "interval that keeps to the share",
                lambda: found if (found := interval()) >= _SLOW_S / _SHARE else 0.0,
                90,
            )
            assert _SLOW_S / stretched <= _SHARE
            httpx.put(f"{server.url}/slowness/0", timeout=10).raise_for_status()
            until("return to the interval that is set", lambda: interval() <= base, 120)
