"""Runs that were never recorded: what is true of them is known, so that what is said of them can be checked."""

from __future__ import annotations

import math
import random

import numpy as np

from kvwatch.experiment.series import RUNNING, SECONDS, WAITING, RunSeries, column

TTFT = "time_to_first_token_seconds"
BOUNDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)


def simulated(
    chance: random.Random, *, steps: int = 150, memory: float = 0.7, factor: float = 1.0, rate: int = 3
) -> RunSeries:
    """A run of steps of one second, in which load comes and goes: what it was a second ago it still is by `memory`
    (0-1), and times to first token follow it. `factor` makes every one of them as many times as long."""
    totals = (column(TTFT, "count"), column(TTFT, "sum"))
    names = [column(TTFT, i) for i in range(len(BOUNDS))]
    columns: dict[str, list[float]] = {
        name: [0.0] * steps
        for name in (*names, *totals, SECONDS, RUNNING, WAITING, "generation_tokens_total")
    }
    load = chance.gauss(0, 1)
    for step in range(steps):
        load = memory * load + math.sqrt(1 - memory * memory) * chance.gauss(0, 1)
        columns[SECONDS][step] = 1.0
        columns[RUNNING][step] = max(8 + 3 * load, 0.0)
        columns["generation_tokens_total"][step] = max(100 + 20 * load + chance.gauss(0, 10), 0.0)
        for _ in range(rate):
            seconds = factor * math.exp(-1 + 0.5 * load + 0.5 * chance.gauss(0, 1))
            columns[column(TTFT, "count")][step] += 1
            columns[column(TTFT, "sum")][step] += seconds
            for bound, name in zip(BOUNDS, names, strict=True):
                columns[name][step] += seconds <= bound
    return RunSeries(
        np.arange(1.0, steps + 1),
        {name: np.array(values) for name, values in columns.items()},
        {TTFT: BOUNDS},
    )
