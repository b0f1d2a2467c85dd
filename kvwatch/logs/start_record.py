"""One start of a server, as its log shows it: facts, options, errors and the steps reached.

A log may hold many starts, and several processes write each of them. An error that several ranks report counts once,
with the ranks. The functions of a traceback are kept per process, so interleaved tracebacks do not mix.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field

from kvwatch.logs.causes import BY_VERDICT, CAUSES, HINT_WORDS
from kvwatch.logs.causes import WORDS as CAUSE_WORDS
from kvwatch.logs.lines import CONTINUATION_LINES, INFO_LEVELS, LogLine
from kvwatch.logs.log_patterns import FactValue, facts_of_match, read_facts, read_options
from kvwatch.logs.out_of_memory import OOM, OOM_WORDS, oom_sizes, oom_verdict
from kvwatch.logs.stages import StartStage, stage_of
from kvwatch.logs.statistics import MAX_LINES, Statistics
from kvwatch.text.redact import quote_log_line

_MAX_ERRORS = 50
"""Errors of one start that are kept; the first ones matter."""
_MAX_FUNCTIONS = 60
_MAX_NAME = 100
"""Characters of a function's name."""
_MAX_PROCESSES = 256
_MAX_MESSAGE = 2000
"""Characters of a message that is joined from several lines."""

_FRAME = re.compile(r"File \"[^\"]*\", line \d+, in (?P<name>\S+)")
_ERROR = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception|Interrupt))(?::\s*(?P<text>.*)|$)"
)
_USAGE = re.compile(r"(?:vllm(?: serve)?|api_server\.py): error: ")
"""How vLLM's command line rejects an option."""
_TRACEBACK = "Traceback (most recent call last)"
_STOP_ERRORS = frozenset({"KeyboardInterrupt", "CancelledError", "SystemExit"})
"""Errors that end a server that did not fail."""
_STOP_WORDS = ("shutdown triggered", "Shutting down FastAPI", "received signal=SIGTERM")

_CONSEQUENCES = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore encountered (?:a fatal error|an issue)"
    r"|WorkerProc (?:initialization failed|failed to start|hit an exception)|Engine process failed to start"
    r"|Engine loop (?:has died|is not running)|EngineDeadError|AsyncLLM output_handler failed"
    r"|(?:died|exited) unexpectedly"
    r"|Frontend process failed|See root cause above|Invocation of \w+ method failed|Background loop has errored"
)
"""Errors that report only that something failed elsewhere."""
_CONSEQUENCE_WORDS = (
    "nitialization failed", "failed to start", "fatal error", " unexpectedly", "hit an exception",
    "EngineDeadError", "root cause", "Engine loop", "output_handler failed", "method failed", "has errored",
)  # fmt: skip

_ENGINE = "LLM engine (v"
_START_WORDS = ("vLLM API server version", "█  version", "non-default args", "args: Namespace(", _ENGINE)
"""Words of the first lines of a start; the API process writes before the engine."""

_NEXT_LINE_EXPLAINS = ("ValidationError",)
"""Errors whose reason is in the next line."""
WORDS = (
    *_STOP_WORDS, '", line ', "Error", "Exception", "Traceback (most", "nterrupt", ": error: ", *OOM_WORDS,
    *_CONSEQUENCE_WORDS, *HINT_WORDS,
)  # fmt: skip
"""Words of lines that are read here."""
CONTINUED_WORDS = (*CAUSE_WORDS, *_NEXT_LINE_EXPLAINS)
"""Words of messages that may continue in the next lines."""


@dataclass
class LoggedError:
    """An error with its verdict (empty if it is no known cause), and the line that reports it first."""

    verdict: str
    line: int
    text: str
    confidence: str
    facts: dict[str, float | str] = field(default_factory=dict)
    ranks: dict[str, None] = field(default_factory=dict)
    message: str = ""
    """The message so far, as the log has it."""
    open_lines: int = 0
    """Lines after it that may still belong to its message."""
    may_be_quoted: bool = False
    """The server was up already, and the error is one of starts or its line has no level: a prompt may quote it."""


class StartRecord:
    """What the lines of one start show, added in their order."""

    def __init__(self, first_line: int = 1, *, max_lines: int = MAX_LINES) -> None:
        self.first_line = first_line
        self.facts: dict[str, FactValue] = {}
        self.options: dict[str, FactValue] = {}
        self.fact_lines: dict[str, tuple[int, str]] = {}
        """The first line of each fact: its number and text."""
        self.stage = StartStage.NONE
        self.has_beginning = False
        """The log shows how this start begins."""
        self.stopping = False
        """The server was asked to stop: later errors belong to its end."""
        self.causes: list[LoggedError] = []
        self.hints: list[LoggedError] = []
        self.consequence: LoggedError | None = None
        """The first error that reports only that something failed elsewhere."""
        self.other_error: LoggedError | None = None
        """The first error that is no known cause."""
        self.statistics = Statistics(max_lines)
        self.vllm_lines = 0
        """Lines that only vLLM writes."""
        self._start_words: set[str] = set()
        self._functions: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_MAX_FUNCTIONS))
        self._open: LoggedError | None = None

    @property
    def has_error(self) -> bool:
        return bool(self.causes or self.hints or self.consequence or self.other_error)

    @property
    def just_begun(self) -> bool:
        """Whether no step is done yet and nothing failed."""
        return not self.has_error and self.stage < StartStage.LOADING and not self.statistics.seen

    def is_next_start(self, line: LogLine) -> bool:
        """Whether a line begins the next start."""
        word = next((word for word in _START_WORDS if word in line.text), None)
        if word is None or line.level not in {"INFO", ""}:
            return False
        complete = self.stage is StartStage.UP or bool(self.causes or self.consequence or self.other_error)
        if word == _ENGINE:  # every engine writes it, after the lines of the API process
            return complete and self.stage >= StartStage.LOADING
        return word in self._start_words or complete or self.stage >= StartStage.LOADING

    def add(self, line: LogLine) -> None:
        if (
            line.continuation
            and self._open is None
            and not (self.other_error and self.other_error.open_lines)
        ):
            return
        stage_before = self.stage
        self._continue_cause(line)
        self._continue_other_error(line)
        if line.continuation:
            return
        if line.level in {"INFO", ""} and (words := {word for word in _START_WORDS if word in line.text}):
            self._start_words |= words
            self.has_beginning = True
        if line.level not in {"ERROR", "CRITICAL"}:
            self.stage = max(self.stage, stage_of(line))
            self._add_facts(line)
        self.stopping = self.stopping or any(word in line.text for word in _STOP_WORDS)
        if self.statistics.add(line):
            self.stage = StartStage.UP
        if line.level not in INFO_LEVELS and not self.stopping:
            self._add_error(line, stage_before)

    # -- facts and options -----------------------------------------------------------------------------------------

    def _add_facts(self, line: LogLine) -> None:
        facts, options = list(read_facts(line)), read_options(line)
        for name, value, least in facts:
            self._add_place(name, line.number, line.text)
            old = self.facts.get(name)
            lower = least and isinstance(old, int | float) and isinstance(value, int | float) and old < value
            self.facts[name] = old if lower and old is not None else value
        for name, value in options.items():
            if name == "kv_cache_memory_bytes":
                self.options["kv_cache_memory_bytes_gib"] = _in_gib(value)
            self.options.setdefault(name, value)
            self._add_place(name, line.number, f"options: …, {name}={value}, …")
        self.vllm_lines += bool(facts or options) or self.stage > StartStage.NONE

    def _add_place(self, name: str, number: int, text: str) -> None:
        if name not in self.fact_lines:
            self.fact_lines[name] = number, quote_log_line(text)

    # -- errors ----------------------------------------------------------------------------------------------------

    def _add_error(self, line: LogLine, stage: StartStage) -> None:
        text, functions = line.text.strip(), self._functions[self._process(line)]
        if _TRACEBACK in text:
            functions.clear()
            return
        if frame := _FRAME.search(text):
            functions.append(frame["name"][:_MAX_NAME])

        def error(verdict: str, confidence: str, facts: dict[str, float | str] | None = None) -> LoggedError:
            return LoggedError(verdict, line.number, quote_log_line(text), confidence, facts or {})

        if row := next((row for row in CAUSES if row.matches(text)), None):
            cause = error(row.verdict, "high", _facts(row.facts, text))
            cause.message, cause.open_lines = text[:_MAX_MESSAGE], CONTINUATION_LINES
            self._add_cause(cause, line)
            return
        if OOM.search(text):
            self._add_cause(error(*oom_verdict(list(functions), stage), oom_sizes(text)), line)
            return
        hints = [error(row.verdict, "medium") for row in CAUSES if row.hinted(text)]
        self.hints = [*self.hints, *hints][:_MAX_ERRORS]
        if _CONSEQUENCES.search(text):
            self.consequence = self.consequence or error("", "high")
        elif self.other_error is None and _USAGE.search(text):
            self.other_error = error("", "high")
        elif self.other_error is None and (found := _ERROR.match(text)) and found["kind"] not in _STOP_ERRORS:
            self.other_error = error("", "medium")
            self.other_error.open_lines = int(any(word in text for word in _NEXT_LINE_EXPLAINS))

    def _add_cause(self, error: LoggedError, line: LogLine) -> None:
        """Keeps a cause. If another rank reported it before, only the rank is added."""
        error.may_be_quoted = self.stage is StartStage.UP and (bool(error.message) or not line.level)
        same = next((one for one in self.causes if one.verdict == error.verdict), None)
        if same is None and len(self.causes) < _MAX_ERRORS:
            self.causes.append(error)
            same = error
            self._open = error if error.open_lines else None
        if same is not None and line.source and len(same.ranks) < _MAX_PROCESSES:
            same.ranks[line.source.partition(" ")[0]] = None

    def _continue_cause(self, line: LogLine) -> None:
        """Adds a line that may be the rest of the message before: a console wraps it, or it is cut off."""
        error = self._open
        if error is None:
            return
        row, text = BY_VERDICT[error.verdict], line.text.strip()
        bare = not line.level and not line.source
        another = line.level in INFO_LEVELS or _ERROR.match(text) or (row.matches(text) and not bare)
        error.open_lines -= 1
        if error.open_lines <= 0 or another:
            self._open = None
            if error.open_lines < 0 or another:
                return
        # A console may break between two words, or in the middle of one.
        for joined in (f"{error.message} {text}", f"{error.message}{text}"):
            for name, value in _facts(row.facts, joined).items():
                error.facts.setdefault(name, value)
        if bare and text and error.text[-1:] not in {".", ")"} and not _FRAME.search(text):
            error.text = quote_log_line(f"{error.message} {text}")
        error.message = f"{error.message} {text}"[:_MAX_MESSAGE]

    def _continue_other_error(self, line: LogLine) -> None:
        error = self.other_error
        if error is None or not error.open_lines or line.number == error.line:
            return
        error.open_lines -= 1
        if line.level not in INFO_LEVELS:
            error.text = quote_log_line(f"{error.text}: {line.text.strip()}")

    def _process(self, line: LogLine) -> str:
        known = line.source in self._functions or len(self._functions) < _MAX_PROCESSES
        return line.source if known else ""


def _facts(patterns: tuple[str, ...], text: str) -> dict[str, float | str]:
    """The numbers in a message. Early releases print bytes where later ones print GiB."""
    found: dict[str, float | str] = {}
    for pattern in patterns:
        if match := re.search(pattern, text):
            found |= facts_of_match(match)
    return {
        name: round(value / (1 << 30), 2)
        if name.endswith("_gib") and not isinstance(value, str) and value > 1e6
        else value
        for name, value in found.items()
    }


def _in_gib(value: FactValue) -> FactValue:
    return value if isinstance(value, str | bool) else round(value / (1 << 30), 2)
