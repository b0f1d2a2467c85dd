"""A day in minutes: 86,400 pages of an incident, a second apart, through the real pipeline, and the memory it takes.

    .venv/bin/python tests/tools/day.py [--samples N] [--json]

Every round of the recording ends in a restart of vLLM, the engine has another model's name in one round of eight, and
whoever scrapes kvwatch gets its metrics every 15 s. Prints the resident memory at twelve moments.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Pace, Scrape
from kvwatch.sidecar.serving.collector import registry_of
from kvwatch.sidecar.serving.metrics_text import Renderer
from kvwatch.sidecar.store import Store

_RECORDING = Path(__file__).parents[1] / "replay" / "recordings" / "0.32.0--c-kv-saturation.jsonl.gz"
_LOOKS = 12


class _Clock:
    time = 1000.0

    def now(self) -> float:
        return self.time


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def recorded() -> list[bytes]:
    lines = gzip.decompress(_RECORDING.read_bytes()).splitlines()
    return [poll["body"].encode() for poll in map(json.loads, lines) if poll["status"] == 200]


def day(samples: int) -> list[tuple[int, float]]:
    """Resident memory (MiB) by the number of samples taken."""
    pages, clock = recorded(), _Clock()
    state, store, render = initial("vllm"), Store(), Renderer().text
    registry, looks = registry_of(store, clock), []
    for n in tqdm(range(1, samples + 1), disable=None, unit=" samples"):
        clock.time += 1.0
        whole_round, at = divmod(n, len(pages))
        body = pages[at]
        if whole_round % 8 == 7:
            body = body.replace(b"tiny-llama", b"model-%d" % whole_round)
        pace = next_pace(state, clock.time)
        scrape = Scrape(body, 1_700_000_000.0 + clock.time, 0.003, pace=pace, narrowed=pace is Pace.FAST)
        state, transitions = advance(state, scrape, clock.time)
        store.publish(state, transitions)
        if n % 15 == 0:
            render(registry)
        if n % (samples // _LOOKS) == 0:
            gc.collect()
            looks.append((n, round(resident_mib(), 1)))
    return looks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=86_400)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()
    began = time.process_time()
    looks = day(args.samples)
    if args.json:
        json.dump(looks, sys.stdout)
        return
    for n, mib in looks:
        print(f"{n:7} samples  {mib:6.1f} MiB")
    print(f"{(time.process_time() - began) / args.samples * 1000:.2f} ms of a processor for each")


if __name__ == "__main__":
    main()
