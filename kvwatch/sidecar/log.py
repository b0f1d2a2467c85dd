"""One line for each thing that happened, for people (logfmt) or for machines (JSON). Never a line per poll."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.export.report import identity, json_safe
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import Event, State, Transition
from kvwatch.core.judgement.symptoms import BY_ID, Severity
from kvwatch.sidecar.log_throttle import FIELDS, LogThrottle, RateLimiter
from kvwatch.text.numbers import plain_number

log = logging.getLogger("kvwatch")

_PLAIN = re.compile(r"[\w.:/+%@{}\[\]-]+")
_LEVELS = {Severity.CRITICAL: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO}
_CONTROL = {i: f"\\x{i:02x}" for i in (*range(32), 127)}


def log_event(level: int, message: str, **fields: Any) -> None:
    """Logs a message with fields; what a field's value may be is what JSON can say."""
    log.log(level, message, extra={FIELDS: fields})


def timestamp(wall: float) -> str:
    """Unix seconds as RFC 3339, in UTC."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    at = timestamp(record.created)
    facts: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
    facts |= json_safe(getattr(record, FIELDS, {}))
    if record.exc_info:
        facts["traceback"] = logging.Formatter().formatException(record.exc_info)
    return facts


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_facts(record), ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """``key=value`` pairs; a traceback keeps its lines, after the pairs."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        traceback = facts.pop("traceback", None)
        line = " ".join(f"{key}={_word(value)}" for key, value in _flat(facts).items())
        return f"{line}\n{traceback}" if traceback else line


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in facts.items():
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
    """Sends kvwatch's lines to a stream (default: standard error), and what web server and event loop complain
    of: of that, one line of a kind a minute."""
    ours, theirs = (logging.StreamHandler(stream or sys.stderr) for _ in range(2))
    for handler in (ours, theirs):
        handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    theirs.addFilter(LogThrottle())
    names = (
        ("kvwatch", level.upper(), ours),
        ("uvicorn.error", "WARNING", theirs),
        ("asyncio", "WARNING", theirs),
    )
    for name, lowest, handler in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False


_TOLD_AS_EVENT = "engine_restarted"
"""A symptom whose beginning the event ``restart`` tells, with more."""
_EVENTS = {
    "restart": (logging.WARNING, "vLLM restarted"),
    "several_servers": (
        logging.WARNING,
        "several servers answer in turn behind this address: give each its own target",
    ),
}


def log_transition(change: Transition, finding: Finding | None = None) -> None:
    """A symptom changed its stage. Firing speaks as loud as its severity, and with `finding` says what to do
    first; what is pending is for the curious."""
    level = logging.INFO
    if change.symptom == _TOLD_AS_EVENT:
        level = logging.DEBUG
    elif change.after is Stage.FIRING:
        level = _LEVELS[BY_ID[change.symptom].severity]
    elif change.after is Stage.PENDING or (change.before is Stage.PENDING and change.after is Stage.INACTIVE):
        level = logging.DEBUG
    log_event(
        level,
        f"{change.symptom} is {change.after}",
        **identity(change.key),
        symptom=change.symptom,
        **{"from": str(change.before), "to": str(change.after)},
        **_what_to_do(finding),
        evidence=dict(change.evidence),
        **({"reason": change.reason} if change.reason else {}),
    )


def _what_to_do(finding: Finding | None) -> dict[str, Any]:
    if finding is None:
        return {}
    first = {"first_action": finding.actions[0]} if finding.actions else {}
    return first | ({"explained_by": list(finding.explained_by)} if finding.explained_by else {})


def log_state_event(event: Event, finding: Finding | None = None) -> None:
    """A restart, servers that take turns behind one address, or an engine that came or went."""
    level, message = _EVENTS.get(event.kind, (logging.INFO, event.kind.replace("_", " ")))
    log_event(
        level,
        message,
        **identity(event.key),
        event=event.kind,
        **_what_to_do(finding),
        detail=dict(event.detail),
    )


_COMINGS = frozenset({"engine_appeared", "engine_vanished"})


def log_changes(
    before: State, after: State, transitions: Iterable[Transition], comings: RateLimiter | None = None
) -> None:
    """What one outcome changed: events and symptoms. With `comings`, of many engines that come and go only a
    few are told of one by one."""
    now = after.now or 0.0
    if comings and (rest := comings.rest(now)):
        log_event(
            logging.WARNING, "more engines came and went than are told of singly", target=after.target, **rest
        )
    known = set(map(id, before.events))
    events = [event for event in after.events if id(event) not in known]
    changes = list(transitions)
    if not events and not changes:
        return
    found = {(one.key, one.symptom.id): one for one in findings(after)}
    for event in events:
        if comings and event.kind in _COMINGS and not comings.admits(event.kind, now):
            continue
        log_state_event(event, found.get((event.key, _TOLD_AS_EVENT)) if event.kind == "restart" else None)
    for change in changes:
        firing = change.after is Stage.FIRING
        log_transition(change, found.get((change.key, change.symptom)) if firing else None)


class Reachability:
    """Says when a server can't be scraped any more, and when it can again.

    That one scrape in between fails is counted, but no news: what could be scraped before must fail for three
    polls or 3 s. A server that never answered is told of at once.
    """

    _POLLS, _SECONDS = 3, 3.0

    def __init__(self) -> None:
        self._told: bool | None = None
        self._polls = 0
        self._since: tuple[float, float] | None = None
        """When it began to fail: monotonic, unix."""

    def see(self, state: State) -> None:
        """Takes the state after a poll."""
        now, wall = state.now or 0.0, state.wall or 0.0
        if state.up:
            self._polls, self._since = 0, None
            if self._told is not True:
                self._told = True
                log_event(logging.INFO, "vLLM is scraped", target=state.target, up=True)
        elif state.error is not None:
            since, since_wall = self._since = self._since or (now, wall)
            self._polls += 1
            lasting = self._polls >= self._POLLS or now - since >= self._SECONDS
            if self._told is None or (self._told and lasting):
                self._told = False
                log_event(
                    logging.WARNING,
                    "vLLM can't be scraped",
                    target=state.target,
                    up=False,
                    since=timestamp(since_wall),
                    failure=str(state.error.kind),
                    detail=state.error.detail,
                )


def log_narrowing(target: str, *, in_use: bool, why: str) -> None:
    """Whether only what is read is asked for, from now on."""
    message = "scrapes are narrowed to what is read" if in_use else "scrapes are of the whole page"
    log_event(logging.INFO, message, target=target, narrowed=in_use, why=why)


class ProblemLog:
    """Errors that nobody expected, each kind with its traceback at most once a minute."""

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._said: dict[str, float] = {}

    def about(self, error: Exception, now: float, **fields: Any) -> None:
        """Logs an error unless one of its kind was logged just now; `now` in monotonic seconds."""
        kind = type(error).__qualname__
        said = self._said.get(kind)
        if said is not None and now - said < self._every_s:
            return
        self._said[kind] = now
        log.error(
            "an error that should not happen; kvwatch goes on",
            exc_info=error,
            extra={FIELDS: {**fields, "error": kind}},
        )
