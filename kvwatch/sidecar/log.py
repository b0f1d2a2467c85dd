"""One line for each thing that happened, as logfmt for people or JSON for machines. Never a line per scrape.

Lines that others can cause are limited, so that nobody can fill a disk with them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.export.report import identity, json_safe
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import Event, State, Transition
from kvwatch.core.judgement.symptoms import BY_ID, Severity
from kvwatch.text.numbers import plain_number

log = logging.getLogger("kvwatch")

_FIELDS = "kvwatch_fields"
"""The attribute of a log record that has its fields."""
_PLAIN = re.compile(r"[\w.:/+%@{}\[\]-]+")
_LEVELS = {Severity.CRITICAL: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO}
_CONTROL = {i: f"\\x{i:02x}" for i in (*range(32), 127)}
_MAX_KINDS, _KIND_CHARACTERS = 200, 80


def log_event(level: int, message: str, **fields: Any) -> None:
    """Logs a message with fields, whose values are what JSON can express."""
    log.log(level, message, extra={_FIELDS: fields})


def timestamp(wall: float) -> str:
    """Unix seconds as RFC 3339, in UTC."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- formats and streams -----------------------------------------------------------------------------------------


def _record_fields(record: logging.LogRecord) -> dict[str, Any]:
    at, level = timestamp(record.created), record.levelname.lower()
    fields: dict[str, Any] = {"time": at, "level": level, "message": record.getMessage()}
    fields |= json_safe(getattr(record, _FIELDS, {}))
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_record_fields(record), ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """``key=value`` pairs; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _record_fields(record)
        traceback = fields.pop("traceback", None)
        line = " ".join(f"{key}={_word(value)}" for key, value in _flat(fields).items())
        return f"{line}\n{traceback}" if traceback else line


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _word(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return plain_number(value)
    text = ",".join(map(_word, value)) if isinstance(value, list) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False).translate(_CONTROL)


def configure_logging(style: Literal["text", "json"], level: str, stream: TextIO | None = None) -> None:
    """Sends kvwatch's lines, and the warnings of the web server and the event loop, to a stream (default: stderr).

    Of the libraries' warnings, one line per kind and minute passes.
    """
    own, library = (logging.StreamHandler(stream or sys.stderr) for _ in range(2))
    for handler in (own, library):
        handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    library.addFilter(LogThrottle())
    for name, lowest, handler in (
        ("kvwatch", level.upper(), own),
        ("uvicorn.error", "WARNING", library),
        ("asyncio", "WARNING", library),
    ):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False


# -- limits ------------------------------------------------------------------------------------------------------


class LogThrottle(logging.Filter):
    """Passes one record a minute of each kind (logger, first words, error); the next one has the count of the rest.

    For libraries: the event loop and the web server may repeat a line thousands of times a second.
    """

    def __init__(self, every_s: float = 60.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._now = now
        self._passed: dict[tuple[str, str, str], tuple[float, int]] = {}
        """By kind: when a record last passed, and how many did not since."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = type(record.exc_info[1]).__name__ if record.exc_info else ""
        kind = (record.name, str(record.msg).partition("\n")[0][:_KIND_CHARACTERS], error)
        if kind not in self._passed and len(self._passed) >= _MAX_KINDS:
            kind = (record.name, "", "")
        now = self._now()
        at, suppressed = self._passed.get(kind, (now - self._every_s, 0))
        if now - at < self._every_s:
            self._passed[kind] = (at, suppressed + 1)
            return False
        self._passed[kind] = (now, 0)
        if suppressed:
            setattr(record, _FIELDS, {**getattr(record, _FIELDS, {}), "not_shown": suppressed})
        return True


class RateLimiter:
    """Admits a number of events a minute, and counts the rest. For engines of one target that come and go."""

    def __init__(self, most: int = 10, every_s: float = 60.0) -> None:
        self._most = most
        self._every_s = every_s
        self._since: float | None = None
        self._admitted = 0
        self._suppressed: Counter[str] = Counter()

    def admits(self, kind: str, now: float) -> bool:
        """Whether an event gets its own line; `now` in monotonic seconds. Call `suppressed` first."""
        if self._since is None:
            self._since, self._admitted = now, 0
        if self._admitted < self._most:
            self._admitted += 1
            return True
        self._suppressed[kind] += 1
        return False

    def suppressed(self, now: float) -> Mapping[str, int]:
        """How many events of each kind were not admitted in a minute that has ended; else empty."""
        if self._since is None or now - self._since < self._every_s:
            return {}
        counts, self._suppressed, self._since = self._suppressed, Counter(), None
        return dict(counts)


class ProblemLog:
    """Logs unexpected errors with their traceback, each kind at most once a minute."""

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._logged_at: dict[str, float] = {}

    def log(self, error: Exception, now: float, **fields: Any) -> None:
        """Logs an error, unless its kind was logged within the last minute; `now` in monotonic seconds."""
        kind = type(error).__qualname__
        last = self._logged_at.get(kind)
        if last is not None and now - last < self._every_s:
            return
        self._logged_at[kind] = now
        fields["error"] = kind
        log.error("unexpected error; kvwatch continues", exc_info=error, extra={_FIELDS: fields})


# -- what happened to a target -----------------------------------------------------------------------------------

_RESTARTED = "engine_restarted"
"""The symptom of a restart. Its line is that of the event ``restart``, which has more fields."""
_EVENTS = {
    "restart": (logging.WARNING, "vLLM restarted"),
    "several_servers": (
        logging.WARNING,
        "several servers answer in turn behind this address: give each its own target",
    ),
}
_LIMITED = frozenset({"engine_appeared", "engine_vanished"})


def log_transition(change: Transition, finding: Finding | None = None) -> None:
    """A symptom changed its stage. The level of a firing one follows its severity; pending ones are for debugging.

    With `finding`, the line has the first action.
    """
    level = logging.INFO
    if change.symptom == _RESTARTED:
        level = logging.DEBUG
    elif change.after is Stage.FIRING:
        level = _LEVELS[finding.severity if finding else BY_ID[change.symptom].severity]
    elif change.after is Stage.PENDING or (change.before is Stage.PENDING and change.after is Stage.INACTIVE):
        level = logging.DEBUG
    log_event(
        level,
        f"{change.symptom} is {change.after}",
        **identity(change.key),
        symptom=change.symptom,
        **{"from": str(change.before), "to": str(change.after)},
        **_advice(finding),
        evidence=dict(change.evidence),
        **({"reason": change.reason} if change.reason else {}),
    )


def _advice(finding: Finding | None) -> dict[str, Any]:
    if finding is None:
        return {}
    actions = finding.advice.actions
    first = {"first_action": actions[0].sentence} if actions else {}
    return first | ({"explained_by": list(finding.explained_by)} if finding.explained_by else {})


def log_state_event(event: Event, finding: Finding | None = None) -> None:
    """A restart, several servers behind one address, or an engine that appeared or vanished."""
    level, message = _EVENTS.get(event.kind, (logging.INFO, event.kind.replace("_", " ")))
    fields = {"event": event.kind, **_advice(finding), "detail": dict(event.detail)}
    log_event(level, message, **identity(event.key), **fields)


def log_changes(
    before: State, after: State, transitions: Iterable[Transition], limiter: RateLimiter | None = None
) -> None:
    """Logs what one outcome changed: events and symptoms.

    `limiter` limits the lines about engines that come and go.
    """
    now = after.now or 0.0
    if limiter and (counts := limiter.suppressed(now)):
        message = "more engines appeared or vanished than are logged one by one"
        log_event(logging.WARNING, message, target=after.target, **counts)
    known = set(map(id, before.events))
    events = [event for event in after.events if id(event) not in known]
    changes = list(transitions)
    if not events and not changes:
        return
    found = {(one.key, one.symptom.id): one for one in findings(after)}
    for event in events:
        if limiter and event.kind in _LIMITED and not limiter.admits(event.kind, now):
            continue
        log_state_event(event, found.get((event.key, _RESTARTED)) if event.kind == "restart" else None)
    for change in changes:
        firing = change.after is Stage.FIRING
        log_transition(change, found.get((change.key, change.symptom)) if firing else None)


class Reachability:
    """Logs when a target goes down, and when it is up again.

    A target that was up is down after failures of three polls or 3 s; a single failed scrape is only counted.
    A target that was never up is down at once.
    """

    _POLLS, _SECONDS = 3, 3.0

    def __init__(self) -> None:
        self._logged: bool | None = None
        self._failed_polls = 0
        self._since: tuple[float, float] | None = None
        """When the failures began: monotonic, unix."""

    def update(self, state: State) -> None:
        """Takes the state after a poll."""
        now, wall = state.now or 0.0, state.wall or 0.0
        if state.up:
            self._failed_polls, self._since = 0, None
            if self._logged is not True:
                self._logged = True
                log_event(logging.INFO, "target is up", target=state.target, up=True)
        elif state.error is not None:
            since, since_wall = self._since = self._since or (now, wall)
            self._failed_polls += 1
            lasting = self._failed_polls >= self._POLLS or now - since >= self._SECONDS
            if self._logged is None or (self._logged and lasting):
                self._logged = False
                fields = {"failure": str(state.error.kind), "detail": state.error.detail}
                since_at = timestamp(since_wall)
                log_event(
                    logging.WARNING, "target is down", target=state.target, up=False, since=since_at, **fields
                )
