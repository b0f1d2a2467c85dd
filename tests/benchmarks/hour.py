"""Watches a server for an hour of a clock that is turned, with all of the sidecar loaded, and says how large it is:
``python -m tests.benchmarks.hour URL`` prints MiB after 20, 40 and 60 minutes."""

from __future__ import annotations

import sys

import kvwatch.sidecar.service  # noqa: F401 - as large as the sidecar
from tests.benchmarks.costs import keep_watching

if __name__ == "__main__":
    for size in keep_watching(sys.argv[1], (1200.0, 1200.0, 1200.0)):
        print(f"{size:.2f}", flush=True)
