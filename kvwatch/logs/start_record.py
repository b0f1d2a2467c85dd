"""One start of a server, as its log tells it: facts, options, errors and how far it came.

A log may hold many starts, one after the other (restarts in a row), and each is told by many processes at once. What
several ranks say in the same words counts once, with the ranks; of a traceback the functions are remembered per
process, so that interleaved ones do not mix.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field

from kvwatch.logs import causes, flags, stages
from kvwatch.logs.causes import CAUSES, OOM, WRAPPERS
from kvwatch.logs.lines import FOLLOWING, INFORMS, LogLine
from kvwatch.logs.log_patterns import log_facts_of, numbers
from kvwatch.logs.stages import StartStage
from kvwatch.logs.statistics import MOST, Statistics
from kvwatch.text.redact import quote_log_line

_MOST = 50
"""Errors of one start that are remembered; the first ones count."""
_FRAMES = 60
_NAME = 100
"""Characters of a function's name."""
_SOURCES = 256
_FRAME = re.compile(r"File \"[^\"]*\", line \d+, in (?P<name>\S+)")
_ERROR = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Interrupt))(?::\s*(?P<text>.*)|$)"
)
#: What its command line says of options that it does not know.
_USAGE = re.compile(r"(?:vllm(?: serve)?|api_server\.py): error: ")
_TRACEBACK = "Traceback (most recent call last)"
STOPPED = ("shutdown triggered", "Shutting down FastAPI", "received signal=SIGTERM")
WORDS = (*STOPPED, '", line ', "Error", "Exception", "Traceback (most", "nterrupt", ": error: ")
#: Errors that say what is wrong in the next line.
OPENING = ("ValidationError",)
_WHOLE = 2000
"""Characters of a message that are put together from several lines."""


@dataclass
class Found:
    """A cause as it was found: the line that says it first, and who says it."""

    verdict: str
    line: int
    text: str
    confidence: str
    facts: dict[str, float | str] = field(default_factory=dict)
    ranks: dict[str, None] = field(default_factory=dict)
    open: int = 0
    """Lines that may still belong to its message."""
    whole: str = ""
    """The message so far, as the log has it."""
    running: bool = False
    """The server ran already: an error of starts then, or one in a line that says no level, may be quoted."""


class StartRecord:
    """Takes the lines of one start in their order."""

    def __init__(self, first_line: int = 1, *, kept: int = MOST) -> None:
        self.first_line = first_line
        self.facts: dict[str, float | str | bool] = {}
        self.flags: dict[str, float | str | bool] = {}
        self.stage = StartStage.NONE
        self.begins = False
        """The log shows the beginning of this start."""
        self.causes: list[Found] = []
        self.weak: list[Found] = []
        self.wrapper: Found | None = None
        self.ended = False
        """It was told to stop; what fails after that is its end."""
        self.other: Found | None = None
        """The first error that is no known cause."""
        self.statistics = Statistics(kept)
        self.places: dict[str, tuple[int, str]] = {}
        """Where a fact was first said."""
        self.lines = 0
        """Lines that vLLM wrote, of those that were looked at."""
        self._seen: set[str] = set()
        self._frames: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_FRAMES))
        self._open: Found | None = None

    # -- where one start ends and the next begins ------------------------------------------------------------------

    def ends_at(self, line: LogLine) -> bool:
        """Whether a line is the beginning of the next start."""
        mark = next((mark for mark in _MARKS if mark in line.text), None)
        if mark is None or line.level not in {"INFO", ""}:
            return False
        over = self.stage is StartStage.UP or bool(self.causes or self.wrapper or self.other)
        if mark == _ENGINE:  # one per engine, and of servers after what the API process says
            return over and self.stage >= StartStage.LOADING
        return mark in self._seen or over or self.stage >= StartStage.LOADING

    # -- taking lines ------------------------------------------------------------------------------------------------

    def take(self, line: LogLine) -> None:
        if line.following and self._open is None and not (self.other and self.other.open):
            return
        before = self.stage
        self._take_rest(line)
        self._take_detail(line)
        if line.following:
            return
        for mark in _MARKS:
            if mark in line.text and line.level in {"INFO", ""}:
                self._seen.add(mark)
                self.begins = True
        if line.level not in {"ERROR", "CRITICAL"}:
            self.stage = max(self.stage, stages.step_of(line))
            self._take_facts(line)
        self.ended = self.ended or any(word in line.text for word in STOPPED)
        if self.statistics.take(line):
            self.stage = StartStage.UP
        if line.level not in INFORMS and not self.ended:
            self._take_error(line, before)

    def _take_facts(self, line: LogLine) -> None:
        found = False
        for name, value, least in log_facts_of(line):
            found = True
            self._place(name, line.number, line.text)
            old = self.facts.get(name)
            lower = least and isinstance(old, int | float) and isinstance(value, int | float) and old < value
            self.facts[name] = old if lower and old is not None else value
        for name, flag in flags.flags_of(line).items():
            found = True
            if name == "kv_cache_memory_bytes":
                self.flags["kv_cache_memory_bytes_gib"] = _in_gib(flag)
            self.flags.setdefault(name, flag)
            self._place(name, line.number, f"options: …, {name}={flag}, …")
        self.lines += found or self.stage > StartStage.NONE

    def _place(self, name: str, number: int, text: str) -> None:
        if name not in self.places:
            self.places[name] = number, quote_log_line(text)

    def _take_error(self, line: LogLine, reached: StartStage) -> None:
        text, frames = line.text.strip(), self._frames[self._lane(line)]
        if _TRACEBACK in text:
            frames.clear()
            return
        if frame := _FRAME.search(text):
            frames.append(frame["name"][:_NAME])
        if OOM.search(text):
            verdict, confidence = stages.oom_verdict(list(frames), reached)
            explicit = next((row for row in CAUSES if row.shows(text)), None)
            if explicit is None:
                self._note(
                    Found(verdict, line.number, quote_log_line(text), confidence, {**causes.sizes(text)}),
                    line,
                )
                return
        for row in CAUSES:
            if row.shows(text):
                facts = _facts(row.facts, text)
                found = Found(
                    row.verdict,
                    line.number,
                    quote_log_line(text),
                    "high",
                    facts,
                    open=FOLLOWING,
                    whole=text[:_WHOLE],
                )
                self._note(found, line)
                return
            if row.hints(text):
                weak = Found(row.verdict, line.number, quote_log_line(text), "medium")
                self.weak[len(self.weak) :] = [weak] if len(self.weak) < _MOST else []
        if WRAPPERS.search(text):
            self.wrapper = self.wrapper or Found("", line.number, quote_log_line(text), "high")
        elif self.other is None and _USAGE.search(text):
            self.other = Found("", line.number, quote_log_line(text), "high")
        elif self.other is None and (error := _ERROR.match(text)) and error["kind"] not in _ENDS:
            opens = any(word in text for word in OPENING)
            self.other = Found("", line.number, quote_log_line(text), "medium", open=int(opens))

    def _take_detail(self, line: LogLine) -> None:
        """Takes the line after an error that says no more than that something is wrong."""
        if self.other is None or not self.other.open or line.number == self.other.line:
            return
        self.other.open -= 1
        if line.level not in INFORMS:
            self.other.text = quote_log_line(f"{self.other.text}: {line.text.strip()}")

    def _take_rest(self, line: LogLine) -> None:
        """Takes what may be the rest of the message of the cause before: a console wraps it, or it is cut off."""
        found = self._open
        if found is None:
            return
        row = causes.BY_VERDICT[found.verdict]
        text = line.text.strip()
        bare = not line.level and not line.source
        another = line.level in INFORMS or _ERROR.match(text) or (row.shows(text) and not bare)
        found.open -= 1
        if found.open <= 0 or another:
            self._open = None
            if found.open < 0 or another:
                return
        # A console may break between two words, or in the middle of one.
        for joined in (f"{found.whole} {text}", f"{found.whole}{text}"):
            for name, value in _facts(row.facts, joined).items():
                found.facts.setdefault(name, value)
        if bare and text and found.text[-1:] not in {".", ")"} and not _FRAME.search(text):
            found.text = quote_log_line(f"{found.whole} {text}")
        found.whole = f"{found.whole} {text}"[:_WHOLE]

    def _note(self, found: Found, line: LogLine) -> None:
        """Remembers a cause; what another rank says of it too adds no more than the rank."""
        found.running = self.stage is StartStage.UP and (bool(found.whole) or not line.level)
        same = next((one for one in self.causes if one.verdict == found.verdict), None)
        if same is None and len(self.causes) < _MOST:
            self.causes.append(found)
            same = found
            self._open = found if found.open else None
        if same is not None and line.source and len(same.ranks) < _SOURCES:
            same.ranks[line.source.partition(" ")[0]] = None

    def _lane(self, line: LogLine) -> str:
        return line.source if line.source in self._frames or len(self._frames) < _SOURCES else ""


#: Lines that begin a start, of the API process first.
_ENGINE = "LLM engine (v"
_MARKS = ("vLLM API server version", "█  version", "non-default args", "args: Namespace(", _ENGINE)
#: What ends a server that did not fail.
_ENDS = frozenset({"KeyboardInterrupt", "CancelledError", "SystemExit"})


def _facts(patterns: tuple[str, ...], text: str) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for pattern in patterns:
        if match := re.search(pattern, text):
            found |= _scaled(numbers(match))
    return found


def _scaled(found: dict[str, float | str]) -> dict[str, float | str]:
    """Early releases print bytes where later ones print GiB."""
    return {
        name: round(value / (1 << 30), 2)
        if name.endswith("_gib") and not isinstance(value, str) and value > 1e6
        else value
        for name, value in found.items()
    }


def _in_gib(value: float | str | bool) -> float | str | bool:
    return value if isinstance(value, str | bool) else round(value / (1 << 30), 2)
