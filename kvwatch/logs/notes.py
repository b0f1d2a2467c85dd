"""What a person should know beside the verdict and the symptoms."""

from __future__ import annotations

from collections.abc import Iterator

from kvwatch.logs.advice import pool
from kvwatch.logs.log_patterns import LogFacts
from kvwatch.logs.stages import StartStage
from kvwatch.logs.start_record import Found, StartRecord
from kvwatch.logs.statistics import Statistics


def asides(told: StartRecord, said: LogFacts, found: Found | None) -> Iterator[str]:
    """What else a person should know."""
    if found and found.verdict == "kv_pool_smaller_than_max_len" and found.confidence == "low":
        yield "the log breaks off before the error itself; that it is this one follows from the step that comes next"
    there, before = said.get("available_gib"), told.facts.get("available_kv_gib")
    if (
        isinstance(there, int | float)
        and isinstance(before, int | float)
        and before > 1.1 * there
        and not pool.pinned_by(said)
    ):
        yield (
            f"elsewhere in the log {before:g} GiB were there for the cache, here {there:g} GiB: find out what took"
            " the rest (the trial batch, if it follows --max-model-len)"
        )
    for one in told.causes:
        if outlived(told, one):
            yield f"line {one.line} has an error, and the server ran before and after it: taken for a quoted one"
    yield from _on_statistics(told.statistics)


def outlived(told: StartRecord, found: Found) -> bool:
    """Whether the server ran before an error and after it, so that it ended no start: a prompt may quote it."""
    readings = told.statistics.readings
    return found.running and told.wrapper is None and bool(readings) and readings[-1].number > found.line


def unfinished(told: StartRecord) -> str:
    """What to know where a log ends in the middle of a start, without an error; empty if it does not."""
    failed = told.causes or told.weak or told.wrapper or told.other
    if failed or told.ended or not told.begins or not StartStage.NONE < told.stage < StartStage.CAPTURED:
        return ""
    return (
        f"the log ends {_WHILE[told.stage]}: it goes on elsewhere, the start is not over yet, or the process was"
        " killed without a word (memory of the host: dmesg, kubectl describe pod, exit code 137)"
    )


_WHILE = {
    StartStage.BEGUN: "when the start has only begun",
    StartStage.LOADING: "while the model is loaded",
    StartStage.LOADED: "when the model is loaded, before the memory for the cache is known",
    StartStage.PROFILED: "before the cache is made",
    StartStage.SIZED: "when the cache is made, before graphs are captured",
    StartStage.CAPTURING: "while graphs are captured",
}


_FEW_SLOTS = 4
"""Fewer running requests than any default of --max-num-seqs has."""


def _on_statistics(lines: Statistics) -> Iterator[str]:
    """What to know when reading what the lines of statistics show."""
    readings = lines.readings
    if lines.seen > len(readings):
        yield f"of {lines.seen} lines of statistics the last {len(readings)} are judged"
    if any(reading.engines > 1 for reading in readings):
        yield "usage is the mean over several engines: a full one among them does not show"
    queued = [reading for reading in readings if reading.parts.get("waiting")]
    if any(reading.parts.get("hit_rate") for reading in queued):
        yield (
            "the prefix hit rate is not to be trusted here: while requests wait, releases before 0.27 count what a"
            " waiting or preempted request finds of its own as hits"
        )


def few_slots(lines: Statistics, said: LogFacts) -> str:
    """What to look at first where so few run at once that no default of --max-num-seqs can be it; else empty."""
    queued = [reading for reading in lines.readings if reading.parts.get("waiting")]
    most = max((reading.parts.get("running", 0.0) for reading in lines.readings), default=0.0)
    roomy = bool(queued) and all(reading.parts.get("usage", 100.0) < 50 for reading in queued)
    if not roomy or not 0 < most <= _FEW_SLOTS or "max_num_seqs" in said:
        return ""
    return (
        f"no more than {most:g} run at once while the cache has room, far below the default of --max-num-seqs: unless"
        " it was set so low, see whether LoRA slots (--max-loras), grammars or KV transfers hold the others"
    )


def unclear(statistics: Statistics) -> str:
    """Why the newest line tells nothing of what holds requests back, though some are there; empty if it does."""
    newest = statistics.readings[-1] if statistics.readings else None
    if newest is None or not (newest.parts.get("running") or newest.parts.get("waiting")):
        return ""
    lacking = [name for name in ("running", "waiting", "usage", "generation") if name not in newest.parts]
    if not lacking:
        return ""
    return f"the lines do not show {', '.join(lacking)}: what requests wait for, and whether any move, can't be told"


def stuck(statistics: Statistics) -> tuple[str, ...]:
    """What to do where the newest line shows that requests wait and nothing runs, and not what else it would take to
    tell a symptom; empty otherwise."""
    newest = statistics.readings[-1] if statistics.readings else None
    if newest is None or newest.parts.get("running") != 0 or not newest.parts.get("waiting"):
        return ()
    if newest.prompt or newest.parts.get("generation") or not unclear(statistics):
        return ()
    return _STUCK


_STUCK = (
    (
        "see whether it stays so, in the next lines or with `kvwatch check URL`: requests that wait while nothing"
        " runs are no overload"
    ),
    (
        "if it does, the request at the head can never be scheduled, or the engine stands still: restart the server,"
        " for neither goes away by itself"
    ),
    (
        "then keep --max-model-len below what the cache holds (with a margin where layers have windows or states),"
        " and --max-num-batched-tokens above the block size that vLLM logs for a model with states"
    ),
)
