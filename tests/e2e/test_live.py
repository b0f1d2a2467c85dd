"""Against a real vLLM under a real load. Opt-in: `make live`.

Start a vLLM with a cache that is small for its load, for instance::

    vllm serve MODEL --max-model-len 2048 --num-gpu-blocks-override 128 --max-num-seqs 64

keep it saturated (two dozen clients in a closed loop, outputs of several hundred tokens), then::

    KVWATCH_LIVE_URL=http://127.0.0.1:8000 KVWATCH_LIVE_REGIME=kv_limited make live

`KVWATCH_LIVE_REGIME` is the regime that the load should be in. `KVWATCH_LIVE_SECONDS` (default 60) is how long
`kvwatch run` is watched for errors and for growth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.stack import answers, free_port, kvwatch
from tests.support.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def url() -> str:
    """The live server; a missing one is a failure, since this was asked for."""
    found = os.environ.get("KVWATCH_LIVE_URL")
    assert found, "set KVWATCH_LIVE_URL to a running vLLM, as the head of this file says"
    return found


def test_check_names_the_regime(url: str) -> None:
    """`kvwatch check` finds the regime that the load was made for."""
    expected = os.environ.get("KVWATCH_LIVE_REGIME")
    assert expected, "set KVWATCH_LIVE_REGIME to the regime that the load should be in"
    command = (sys.executable, "-m", "kvwatch", "check", url, "--for", "40s", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    found = json.loads(done.stdout)
    seconds: dict[str, float] = found["regimes"]
    assert max(seconds, key=lambda regime: seconds[regime]) == expected
    assert done.returncode == (0 if expected in {"idle", "flowing", "full"} else 1)


def test_run_makes_no_error_and_does_not_grow(url: str, tmp_path: Path) -> None:
    """`kvwatch run` beside it: no error of its own, the memory flat, the processor hardly used."""
    port, log = free_port(), tmp_path / "log"
    seconds = float(os.environ.get("KVWATCH_LIVE_SECONDS", "60"))
    with kvwatch(log, "run", "--host", "127.0.0.1", "--port", str(port), "--targets", url) as process:
        metrics = f"http://127.0.0.1:{port}/metrics"
        until("answer of kvwatch", lambda: answers(metrics), 15)
        time.sleep(min(15.0, seconds / 3))
        before = _own(metrics)
        time.sleep(seconds)
        after = _own(metrics)
        assert process.poll() is None
    assert after["poll_errors_total"] == 0
    assert after["polls_total"] - before["polls_total"] > seconds * 0.5
    grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    assert grown < 8 << 20
    busy = (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds
    print(
        f"\nprocessor {busy:.2%} of a core, memory {after['process_resident_memory_bytes'] / 2**20:.1f} MiB"
    )
    assert busy < 0.05
    assert "Traceback" not in log.read_text(encoding="utf-8")


def _own(metrics: str) -> dict[str, float]:
    """kvwatch's numbers about itself."""
    lines = httpx.get(metrics, timeout=5).text.splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.partition("{")[0].removeprefix("kvwatch_"): float(value) for name, _, value in samples}
