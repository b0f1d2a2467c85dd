"""Memory does not grow with time, restarts or names: two hours and a half of pages through the real pipeline.

The whole day, and half an hour beside a live vLLM, are `make soak`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DAY = Path(__file__).parents[1] / "tools" / "day.py"
SAMPLES = 9_000
"""More than twice the hour that histories are kept for."""


def test_memory_is_flat_once_the_histories_are_full() -> None:
    done = subprocess.run(
        [sys.executable, DAY, "--samples", str(SAMPLES), "--json"], capture_output=True, text=True, check=True
    )
    looks = dict(json.loads(done.stdout))
    full = [mib for n, mib in looks.items() if n > SAMPLES * 0.45]
    assert len(full) >= 6
    assert max(full) - full[0] < 4, looks
    assert max(full) < 100, looks
