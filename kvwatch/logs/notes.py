"""What a person should know next to the verdict and the symptoms: caveats, and hints from a few statistics lines."""

from __future__ import annotations

from collections.abc import Iterator

from kvwatch.logs.derived_facts import with_derived
from kvwatch.logs.log_patterns import LogFacts, first_number
from kvwatch.logs.stages import IF_IT_ENDS
from kvwatch.logs.start_record import LoggedError, StartRecord
from kvwatch.logs.statistics import Statistics

_FEW_RUNNING = 4
"""Every default of --max-num-seqs is above this number of running requests."""
_MORE_MEMORY = 1.1


def notes_on_start(record: StartRecord, facts: LogFacts, cause: LoggedError | None) -> Iterator[str]:
    if cause is not None and cause.verdict and cause.confidence == "low" and cause not in record.causes:
        yield "the log ends before the error itself: the cause is inferred from the step that comes next"
    before, now = first_number(record.facts, "available_kv_gib"), first_number(facts, "available_gib")
    more_before = before is not None and now is not None and before > _MORE_MEMORY * now
    if more_before and "pinned_by" not in with_derived(facts):
        yield (
            f"elsewhere in the log {before:g} GiB were available for the KV cache, here {now:g} GiB: find out"
            " what took the rest (the profiling batch, if it follows --max-model-len)"
        )
    for error in record.causes:
        if is_quoted(record, error):
            yield f"ignored the error in line {error.line}: the server ran before and after it, so a prompt quotes it"


def notes_on_statistics(statistics: Statistics) -> Iterator[str]:
    lines = statistics.lines
    if statistics.seen > len(lines):
        yield f"judged the last {len(lines)} of {statistics.seen} statistics lines"
    if any(line.engines > 1 for line in lines):
        yield "usage is the mean of several engines: it hides a single full one"
    if any(line.parts.get("hit_rate") for line in lines if line.parts.get("waiting")):
        yield (
            "the prefix cache hit rate is unreliable here: before vLLM 0.27, a waiting or preempted request"
            " that finds its own blocks counts as a hit"
        )


def is_quoted(record: StartRecord, error: LoggedError) -> bool:
    """Whether the server ran before and after an error, so that it ended no start: a prompt may quote it."""
    newest = record.statistics.newest
    return (
        error.may_be_quoted
        and record.consequence is None
        and newest is not None
        and newest.number > error.line
    )


def note_on_end(record: StartRecord) -> str:
    """A note if the log ends in the middle of a start without an error; else empty."""
    if record.has_error or record.stopping or not record.has_beginning or record.stage not in IF_IT_ENDS:
        return ""
    return (
        f"the log ends {IF_IT_ENDS[record.stage]}: it continues elsewhere, the start is not complete yet, or the"
        " process was killed without a message (host memory: dmesg, kubectl describe pod, exit code 137)"
    )


def note_on_missing_parts(statistics: Statistics) -> str:
    """A note if requests are there and the newest line does not show what holds them up; else empty."""
    newest = statistics.newest
    if newest is None or not (newest.parts.get("running") or newest.parts.get("waiting")):
        return ""
    missing = [name for name in ("running", "waiting", "usage", "generation") if name not in newest.parts]
    if not missing:
        return ""
    lacking = ", ".join(missing)
    return f"the statistics lines lack {lacking}: it is unknown why requests wait and whether any progress"


def check_other_limits(statistics: Statistics, facts: LogFacts) -> str:
    """The first action if so few requests run that no default of --max-num-seqs can be the limit; else empty."""
    queued = [line for line in statistics.lines if line.parts.get("waiting")]
    most = max((line.parts.get("running", 0.0) for line in statistics.lines), default=0.0)
    has_room = bool(queued) and all(line.parts.get("usage", 100.0) < 50 for line in queued)
    if not has_room or not 0 < most <= _FEW_RUNNING or "max_num_seqs" in facts:
        return ""
    return (
        f"check whether LoRA slots (--max-loras), grammars or KV transfers hold requests up: at most {most:g} run at"
        " once while the cache has room, far below the default of --max-num-seqs (unless it was set that low)"
    )


def actions_for_stuck_queue(statistics: Statistics) -> tuple[str, ...]:
    """What to do if requests wait, nothing runs, and the newest line is too short for a symptom; else empty."""
    newest = statistics.newest
    if newest is None or newest.parts.get("running") != 0 or not newest.parts.get("waiting"):
        return ()
    if newest.is_moving or not note_on_missing_parts(statistics):
        return ()
    return (
        (
            "check whether it stays so, in the next lines or with `kvwatch check URL`: a queue while nothing runs is"
            " no overload"
        ),
        (
            "if it does, restart the server: the first request in the queue can never be scheduled, or the engine"
            " stalls; neither resolves by itself"
        ),
        (
            "then keep --max-model-len below what the cache holds (with a margin if layers have windows or states),"
            " and --max-num-batched-tokens above the block size that vLLM logs for a model with states"
        ),
    )
