"""A real Prometheus with what a real kvwatch exported while it watched recorded servers.

The recordings are judged by `advance` and written by the collector as in the service, by their own clocks; the pages
go into Prometheus' own blocks with the times at which they were made, so that a minute takes a second.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from prometheus_client.registry import CollectorRegistry

from kvwatch.core.exposition import dcgm
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import State, initial
from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.outcome import Scrape
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.recording import Record, outcome_of, read
from kvwatch.sidecar.serving.collector import registry_of
from tests.support.replayed import RECORDINGS, Replayed
from tests.support.stack import prometheus

DCGM = Path(__file__).parents[1] / "data" / "dcgm" / "mig.prom"
SCENARIOS = json.loads((RECORDINGS.parents[1] / "captures" / "scenarios.json").read_text(encoding="utf-8"))
#: How far apart pages are, seconds.
EVERY_S = 2.0


@dataclass(frozen=True)
class Watched:
    """A recorded server that a kvwatch at `instance` watches. `gpu`: with a DCGM exporter's page beside it."""

    instance: str
    target: str
    recording: str
    facts: ServerInfo | None = None
    gpu: bool = False


@dataclass(frozen=True)
class Filled:
    """Where to ask, and the time that is filled: unix seconds."""

    client: httpx.Client
    start: float
    end: float

    @property
    def seconds(self) -> int:
        return round(self.end - self.start)


def pages(watched: Watched, end: float, every_s: float = EVERY_S) -> Iterator[tuple[float, str]]:
    """Times and pages, the last of them at `end`."""
    records = [one for one in read(RECORDINGS / f"{watched.recording}.jsonl.gz") if isinstance(one, Record)]
    later = end - records[-1].t
    gpu = dcgm.read_gpus(dcgm.page_reader(), DCGM.read_bytes(), interval_s=5.0) if watched.gpu else None
    state, due = initial(watched.target), 0.0
    for number, record in enumerate(records, 1):
        state = _next(state, replace(record, t=record.t + later), watched.facts, gpu)
        if record.t >= due or number == len(records):
            due = record.t + every_s
            store = Replayed(state, number)
            yield record.t + later, _lines(registry_of(store, store), watched.instance, record.t + later)


def _next(state: State, record: Record, facts: ServerInfo | None, gpu: GpuReading | None) -> State:
    found = outcome_of(record, interval_s=1.0, pace=next_pace(state, record.t))
    if isinstance(found, Scrape):
        found = replace(found, facts=facts or found.facts, gpu=gpu, duration_s=0.003)
    return advance(state, found, record.t)[0]


def _lines(registry: CollectorRegistry, instance: str, at: float) -> str:
    """Every sample, as OpenMetrics has it, with what Prometheus adds and the time."""
    found = []
    for family in registry.collect():
        for sample in family.samples:
            labels = {"job": "kvwatch", "instance": instance, **sample.labels}
            inside = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if value)
            found.append(f"{sample.name}{{{inside}}} {sample.value} {at:.3f}\n")
    return "".join(found)


def write(folder: Path, texts: Iterable[str]) -> None:
    """Blocks of these lines in the folder in which a Prometheus in `folder` keeps its data."""
    path = folder / "backfill.om"
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(text)
        file.write("# EOF\n")
    command = ("promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(path), str(folder / "data"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    path.unlink()


@contextmanager
def filled(folder: Path, servers: Sequence[Watched], every_s: float = EVERY_S) -> Iterator[Filled]:
    """A Prometheus that knows all that happened to these servers."""
    end = float(int(time.time()) - 10)
    times: list[float] = []

    def texts() -> Iterator[str]:
        for one in servers:
            for at, text in pages(one, end, every_s):
                times.append(at)
                yield text

    (folder / "data").mkdir(exist_ok=True)
    write(folder, texts())
    with (
        prometheus(folder, "127.0.0.1:9", interval="1h", lookback=f"{round(2.5 * every_s)}s") as asked,
        httpx.Client(base_url=asked.url, timeout=60) as client,
    ):
        yield Filled(client, min(times), end)


def facts_of(recording: str, version: str) -> ServerInfo:
    """What the recorded server's other endpoints would have said, from the options it was started with."""
    flags = SCENARIOS[recording.replace("--", "/", 1)]["flags"]
    return ServerInfo(
        version=version, max_model_len={"tiny-llama": int(flags[flags.index("--max-model-len") + 1])}
    )
