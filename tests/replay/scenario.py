"""A notation for scripted scenarios: a whole incident in a few lines that read like the log of vLLM.

::

    title: A pool full of requests, and a queue that only grows
    fires: kv_exhausted by 3m
    may: kv_near_full
    not: kv_thrashing
    says not: raise --max-num-seqs
    origin: vllm-project/vllm #1

    server: blocks=330 block_size=128 gpu_memory_utilization=0.6 version=0.22 max_model_len=32768
    0s    run=35 wait=0     kv=95%        prompt=1024/s done=1/s lens=1024/256 ttft=0.5
    1m    run=36 wait=0..8  kv=95%..98.5% prompt=307/s  done=0.2/s queue=5..40
    2m    run=36 wait=8..132 kv=97%~100%  done=0.2/s preempt=41
    15m   end

Header
    `fires` names what must fire (`by` a time), `may` what may, `not` what must not fire at all. Everything else must
    not fire above info. `says not` is a pattern that nothing said about anything that fires may match, `says` one
    that something must match, `distrusts` a derived number that must be untrusted in the end. `origin` is where the
    story comes from, in one line.

Server
    `version` is a release or `v1` (0.32) or `v0`; older releases lack what they lack. `blocks` (of one engine),
    `block_size`, `kv_tokens`, `cache_dtype`, `gpu_memory_utilization`, `prefix_caching=off` and `cache.<label>` go
    into its cache configuration; `max_model_len` is what ``/v1/models`` says, `max_num_seqs` what the operator
    told kvwatch, `max_lora` exposes LoRA's series, `without` names families that are missing, `up` is for how long it
    was up before, `every` the pace of the polls (1s), `scrape=full` has every page whole. `before:` has lifetime
    totals from before the first poll.

Phases
    A line holds from its time to the next line's; `@1` is about that engine only. Indented lines go on. What a phase
    does not name is nought in it. Only the shape of requests (`lens`, `ttft`, `itl`, `queue`, `prefill`, `hit`)
    stays until said anew.

    gauges  `run`, `wait` (with `deferred` of them), `kv`, `swapped`
    flows   `done`, `abort`, `error`, `first` (tokens; as `done`), `preempt`, `reject`, `prompt` (as the lengths of
            those that got their first token), `out` (as the lengths of those done), `queried` (as prompt),
            `steps` (20/s while anything flows): a rate (`/s`, `/m`, `/h`) or a total that is spread over the phase
    shape   `lens=prompt/output` in tokens (200/50), `ttft` (0.05 s, or `queue` and `prefill`) and `itl` (0.02 s) of
            a request, `hit` the share of queried tokens found (50%)
    marks   `down` (or `down=timeout`), `gap` (nobody polls), `restart`, `asleep`, `reset=<counter>`,
            `adapters=running/waiting` of LoRA

    A value is a number (or a percentage), a ramp `a..b` over the phase, a spread `a~b` over samples or requests, or
    a cycle of those: `0.2*9,3~4` is a slow one in ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import floor
from pathlib import Path

from kvwatch.core.model.outcome import Failure

GAUGES = ("run", "wait", "kv", "deferred", "swapped")
FLOWS = (
    "done", "abort", "error", "first", "preempt", "reject", "prompt", "out", "queried", "steps",
)  # fmt: skip
SHAPES = ("lens", "ttft", "itl", "queue", "prefill", "hit")
MARKS = ("down", "gap", "restart", "asleep")
SETTINGS = (
    "blocks", "block_size", "kv_tokens", "cache_dtype", "gpu_memory_utilization", "prefix_caching", "max_model_len",
    "max_num_seqs", "version", "without", "up", "every", "scrape", "max_lora",
)  # fmt: skip
HEADERS = ("title", "origin", "fires", "may", "not", "says not", "says", "distrusts", "server", "before")
_CONFIG = "cache."
_ALONE = ("down", "gap", "restart")
_GOLDEN = 0.6180339887498949
_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_TERM = re.compile(r"(\d+(?:\.\d+)?%?)(?:(\.\.|~)(\d+(?:\.\d+)?%?))?(?:\*(\d+))?")
_SETTING_IS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("blocks", "block_size", "kv_tokens", "max_model_len", "max_num_seqs", "max_lora"),
        ("a whole number", r"\d+"),
    ),
    "every": ("a time like 10s", r"[1-9]\d*[smh]"),
    "prefix_caching": ("on or off", "on|off"),
    "scrape": ("full, or not said", "full"),
    "up": ("a time like 10s", r"(\d+[smh])+"),
    "version": ("v0, v1 or like 0.22", r"v0|v1|0(\.\d+){1,2}"),
}
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}


class ScenarioError(ValueError):
    """A text that is no scenario; says where, and what is wrong."""

    def __init__(self, name: str, line: int, column: int, what: str) -> None:
        super().__init__(f"{name}:{line}:{column}: {what}")


@dataclass(frozen=True, slots=True)
class Term:
    """A number, a ramp over the phase, or a spread over samples or requests."""

    low: float
    high: float
    ramp: bool = True

    def at(self, progress: float, k: int) -> float:
        """Its value when so much (0-1) of the phase is over, for the k-th sample or request."""
        return self.low + (self.high - self.low) * (progress if self.ramp else (k * _GOLDEN) % 1.0)


@dataclass(frozen=True, slots=True)
class Value:
    """A cycle of terms."""

    terms: tuple[Term, ...]

    def at(self, progress: float, k: int = 0) -> float:
        n = len(self.terms)
        return self.terms[k % n].at(progress, k // n)

    @property
    def constant(self) -> bool:
        return len(self.terms) == 1 and self.terms[0].low == self.terms[0].high

    def mean(self, progress: float) -> float:
        """What it is on average at a moment."""
        found = [term.at(progress, 0) if term.ramp else (term.low + term.high) / 2 for term in self.terms]
        return sum(found) / len(found)


def constant(number: float) -> Value:
    return Value((Term(number, number),))


@dataclass(frozen=True, slots=True)
class Phase:
    """What goes on between two times. `flows` are per second, `totals` in all."""

    start: float
    stop: float
    engine: str | None
    gauges: Mapping[str, Value] = field(default_factory=dict)
    flows: Mapping[str, Value] = field(default_factory=dict)
    totals: Mapping[str, Value] = field(default_factory=dict)
    shape: Mapping[str, Value] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    failure: Failure = Failure.REFUSED
    resets: frozenset[str] = frozenset()
    adapters: tuple[str, str] | None = None

    def progress(self, t: float) -> float:
        return (t - self.start) / (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Must:
    """A symptom that must fire, if `by` is told until then."""

    symptom: str
    by: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A scenario as it was read."""

    name: str
    title: str
    origin: str
    fires: tuple[Must, ...]
    may: frozenset[str]
    never: frozenset[str]
    says_not: tuple[str, ...]
    says: tuple[str, ...]
    distrusts: tuple[str, ...]
    settings: Mapping[str, str]
    config: Mapping[str, str]
    before: Mapping[str, float]
    engines: tuple[str, ...]
    phases: tuple[Phase, ...]
    end: float

    def of(self, engine: str) -> list[Phase]:
        """The phases of an engine, without a break."""
        own = [phase for phase in self.phases if phase.engine in (None, engine)]
        shape: dict[str, Value] = {}
        found = []
        for i, phase in enumerate(own):
            stop = own[i + 1].start if i + 1 < len(own) else self.end
            shape = {**shape, **phase.shape}
            spread = {name: _scaled(total, 1 / (stop - phase.start)) for name, total in phase.totals.items()}
            flows = {**phase.flows, **spread}
            found.append(replace(phase, stop=stop, engine=engine, shape=shape, flows=flows))
        return found

    @property
    def named(self) -> frozenset[str]:
        """Every symptom that the header names."""
        return frozenset(must.symptom for must in self.fires) | self.may | self.never

    @property
    def every(self) -> float:
        return seconds(self.settings.get("every", "1s")) or 1.0


def seconds(text: str) -> float | None:
    """A time like ``1h``, ``90s`` or ``1m30s``; None if it is none."""
    match = _TIME.fullmatch(text)
    if match is None or not text:
        return None
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


def read(path: Path) -> Scenario:
    """The scenario in a file."""
    return parsed(path.read_text(encoding="utf-8"), path.stem)


def parsed(text: str, name: str = "scenario") -> Scenario:
    """The scenario that a text is; ScenarioError says line and column of what is wrong with it."""
    return _Parser(text, name).scenario()


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    line: int
    column: int


class _Parser:
    """Reads one text."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self.header: dict[str, list[tuple[str, _Word]]] = {}
        self.phases: list[Phase] = []
        self.end: float | None = None
        self.last = _Word("", 1, 1)

    def scenario(self) -> Scenario:
        for words in self._lines():
            self._line(words)
        if self.end is None:
            raise self._wrong(self.last, "a scenario ends with a time and 'end'")
        settings, config = self._server()
        engines = tuple(sorted({p.engine for p in self.phases if p.engine is not None})) or ("0",)
        found = Scenario(
            name=self.name,
            title=self._one("title"),
            origin=self._one("origin"),
            fires=tuple(self._musts()),
            may=frozenset(self._ids("may")),
            never=frozenset(self._ids("not")),
            says_not=tuple(text for text, _ in self.header.get("says not", [])),
            says=tuple(text for text, _ in self.header.get("says", [])),
            distrusts=tuple(self._ids("distrusts")),
            settings=settings,
            config=config,
            before=self._before(),
            engines=engines,
            phases=tuple(self.phases),
            end=self.end,
        )
        for engine in engines:
            own = found.of(engine)
            if not own or own[0].start != 0:
                raise self._wrong(_Word("", 1, 1), f"engine {engine} has no phase that begins at 0s")
        return found

    def _wrong(self, word: _Word, what: str) -> ScenarioError:
        return ScenarioError(self.name, word.line, word.column, what)

    def _unknown(self, word: _Word, key: str, known: tuple[str, ...], what: str) -> ScenarioError:
        close = get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        return self._wrong(word, f"{what} {key!r} is unknown; {hint}")

    # -- lines --

    def _lines(self) -> Iterator[list[_Word]]:
        """The words of each line; an indented line goes on the one before."""
        held: list[_Word] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            bare = re.sub(r"(^|\s)#(\s.*)?$", "", line)
            words = [_Word(m.group(), number, m.start() + 1) for m in re.finditer(r"\S+", bare)]
            if not words:
                continue
            self.last = words[-1]
            if bare[0].isspace() and held:
                held += words
                continue
            if held:
                yield held
            held = words
        if held:
            yield held

    def _line(self, words: list[_Word]) -> None:
        first = words[0]
        if seconds(first.text) is not None:
            self._phase(words)
            return
        said = " ".join(word.text for word in words)
        key, colon, value = said.partition(":")
        if not colon:
            raise self._wrong(
                first, f"neither a time (like 90s) nor a header (like 'title: …'): {first.text!r}"
            )
        if key not in HEADERS:
            raise self._unknown(first, key, HEADERS, "header")
        if key in self.header and key not in {"says not", "says"}:
            raise self._wrong(first, f"{key!r} is said twice")
        if self.phases:
            raise self._wrong(first, f"{key!r} comes after the first phase")
        after = words[len(key.split()) :] or [_Word("", first.line, first.column + len(key) + 1)]
        self.header.setdefault(key, []).append((value.strip(), after[0]))
        if key in ("server", "before"):
            self.header[key] = [(word.text, word) for word in words[1:]]

    def _one(self, key: str) -> str:
        return next((text for text, _ in self.header.get(key, [])), "")

    def _ids(self, key: str) -> list[str]:
        return [part.strip() for part in self._one(key).split(",") if part.strip()]

    def _musts(self) -> Iterator[Must]:
        for part in self._ids("fires"):
            symptom, by, time = part.partition(" by ")
            at = seconds(time.strip()) if by else None
            if " " in symptom or (by and at is None):
                word = self.header["fires"][0][1]
                raise self._wrong(word, f"not 'symptom' or 'symptom by 3m': {part!r}")
            yield Must(symptom, at)

    def _server(self) -> tuple[dict[str, str], dict[str, str]]:
        settings: dict[str, str] = {}
        config: dict[str, str] = {}
        for _, word in self.header.get("server", []):
            key, _, value = word.text.partition("=")
            if not value:
                raise self._wrong(word, f"a setting is 'name=value': {word.text!r}")
            if key.startswith(_CONFIG):
                config[key.removeprefix(_CONFIG)] = value
                continue
            if key not in SETTINGS:
                raise self._unknown(word, key, SETTINGS, "setting")
            what, pattern = _SETTING_IS.get(key, ("", ".+"))
            if not re.fullmatch(pattern, value):
                raise self._wrong(word, f"{key} is {what}: {value!r}")
            settings[key] = value
        return settings, config

    def _before(self) -> dict[str, float]:
        found = {}
        known = tuple(flow for flow in FLOWS if flow != "first")
        for _, word in self.header.get("before", []):
            key, _, value = word.text.partition("=")
            if key not in known:
                raise self._unknown(word, key, known, "lifetime total")
            found[key] = self._value(word, value, wrong="..").at(0)
        return found

    # -- phases --

    def _phase(self, words: list[_Word]) -> None:
        time, *rest = words
        start = seconds(time.text) or 0.0
        if self.end is not None:
            raise self._wrong(time, "nothing comes after the end")
        if self.phases and start < self.phases[-1].start:
            raise self._wrong(time, f"{time.text} is before the phase above it")
        if [word.text for word in rest] == ["end"]:
            if not self.phases or start <= self.phases[-1].start:
                raise self._wrong(time, "the end comes after the beginning of the last phase")
            self.end = start
            return
        engine = None
        if rest and rest[0].text.startswith("@"):
            engine = rest.pop(0).text[1:]
        self._no_second(time, start, engine)
        self.phases.append(_Reader(self, start, engine, rest).phase())

    def _no_second(self, time: _Word, start: float, engine: str | None) -> None:
        if any(p.start == start and (p.engine == engine or None in (p.engine, engine)) for p in self.phases):
            raise self._wrong(time, f"a phase begins at {time.text} already")

    def _value(self, word: _Word, text: str, offset: int = -1, wrong: str = "") -> Value:
        """The value in a word, from `offset` on (after the ``=``, if not said)."""
        terms: list[Term] = []
        column = word.column + (word.text.index("=") + 1 if offset < 0 else offset)
        for part in text.split(","):
            match = _TERM.fullmatch(part)
            at = _Word(part, word.line, column)
            if match is None:
                raise self._wrong(at, f"not a number, a..b, a~b or a list of these: {part!r}")
            low, kind, high, times = match.groups()
            if kind is not None and kind == wrong:
                raise self._wrong(at, f"a total is one number, no ramp: {part!r}")
            term = Term(_number(low), _number(high or low), kind != "~")
            terms += [term] * int(times or 1)
            column += len(part) + 1
        return Value(tuple(terms))


class _Reader:
    """Reads the words of one phase."""

    def __init__(self, parser: _Parser, start: float, engine: str | None, words: list[_Word]) -> None:
        self.parser = parser
        self.start, self.engine, self.words = start, engine, words
        self.gauges: dict[str, Value] = {}
        self.flows: dict[str, Value] = {}
        self.totals: dict[str, Value] = {}
        self.shape: dict[str, Value] = {}
        self.marks: set[str] = set()
        self.failure = Failure.REFUSED
        self.resets: set[str] = set()
        self.adapters: tuple[str, str] | None = None

    def phase(self) -> Phase:
        seen: set[str] = set()
        for word in self.words:
            key, equals, text = word.text.partition("=")
            if key in seen:
                raise self.parser._wrong(word, f"{key!r} is said twice in this phase")
            seen.add(key)
            if key in MARKS:
                self._mark(word, key, text)
            elif not equals or not text:
                raise self.parser._unknown(word, key, (*MARKS, "end"), "mark")
            else:
                self._number(word, key, text)
        return Phase(
            start=self.start,
            stop=self.start,
            engine=self.engine,
            gauges=self.gauges,
            flows=self.flows,
            totals=self.totals,
            shape=self.shape,
            marks=frozenset(self.marks),
            failure=self.failure,
            resets=frozenset(self.resets),
            adapters=self.adapters,
        )

    def _mark(self, word: _Word, key: str, text: str) -> None:
        if self.engine is not None and key in _ALONE:
            raise self.parser._wrong(word, f"{key!r} is about the whole server, not one engine")
        self.marks.add(key)
        if text and (key != "down" or text not in {str(kind) for kind in Failure}):
            raise self.parser._wrong(word, f"not a kind of failure: {text!r}")
        if text:
            self.failure = Failure(text)

    def _number(self, word: _Word, key: str, text: str) -> None:
        value = self.parser._value
        if key in GAUGES:
            self.gauges[key] = value(word, text)
        elif key in FLOWS:
            self._flow(word, key, text)
        elif key == "lens":
            prompt, slash, output = text.partition("/")
            if not slash:
                raise self.parser._wrong(word, f"lens is prompt/output in tokens: {text!r}")
            after = len(key) + len(prompt) + 2
            self.shape |= {"prompt": value(word, prompt), "output": value(word, output, after)}
        elif key in SHAPES:
            self.shape[key] = value(word, text)
        elif key == "reset":
            self.resets |= set(text.split(","))
            for name in self.resets - set(FLOWS):
                raise self.parser._unknown(word, name, FLOWS, "counter")
        elif key == "adapters":
            running, _, waiting = text.partition("/")
            self.adapters = (running, waiting)
        else:
            known = (*GAUGES, *FLOWS, *SHAPES, "reset", "adapters")
            raise self.parser._unknown(word, key, known, "number")

    def _flow(self, word: _Word, key: str, text: str) -> None:
        number, slash, per = text.partition("/")
        if slash and per not in _PER:
            raise self.parser._wrong(word, f"a rate is per s, m or h: {text!r}")
        if slash:
            self.flows[key] = _scaled(self.parser._value(word, number), 1 / _PER[per])
        else:
            self.totals[key] = self.parser._value(word, number, wrong="..")


def _scaled(value: Value, by: float) -> Value:
    return Value(tuple(Term(term.low * by, term.high * by, term.ramp) for term in value.terms))


def _number(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def whole(amount: float) -> int:
    """The whole events in an amount that grew by fractions."""
    return floor(amount + 1e-6)
