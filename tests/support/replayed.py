"""A store of one replayed target whose clock stands still."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvwatch.core.export.catalogue import NotificationCounts, ReloadCounts
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import State, initial
from kvwatch.core.model.outcome import Failure, Outcome, Scrape, ScrapeError
from kvwatch.sidecar.store import PollStats

RECORDINGS = Path(__file__).parents[1] / "replay" / "recordings"


@dataclass
class Replayed:
    """A store of one replayed target whose clock stands still."""

    state: State
    count: int
    sent: tuple[NotificationCounts, ...] = ()

    def states(self) -> Mapping[str, State]:
        return {self.state.target: self.state}

    def poll_stats(self, target: str) -> PollStats:
        assert target == self.state.target
        return PollStats(polls=self.count)

    def deliveries(self) -> tuple[NotificationCounts, ...]:
        return self.sent

    def reloads(self) -> ReloadCounts:
        return ReloadCounts({"ok": 1, "failed": 0}, last_success=1_700_000_000.0)

    def now(self) -> float:
        return self.state.now or 0.0


def replayed(recording: str | Path, samples: int) -> Replayed:
    path = recording if isinstance(recording, Path) else RECORDINGS / f"{recording}.jsonl.gz"
    state = initial("vllm")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines][:samples]
    for record in records:
        outcome: Outcome
        if record["status"] == 200:
            body = record["body"].encode()
            outcome = Scrape(body, record["t"], duration_s=0.003, pace=next_pace(state, record["t"]))
        else:
            outcome = ScrapeError(Failure.REFUSED, "connection refused", record["t"])
        state, _ = advance(state, outcome, record["t"])
    return Replayed(state, len(records))
