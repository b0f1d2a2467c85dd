"""The type of a row of `causes`, and how its text is filled with facts.

The text of a row is its meaning, in one or two sentences, and a list of actions, first things first. An action may
begin with conditions in parentheses: facts that must be known and true, or ``not``. ``<name>`` inserts a text of
`SHARED`.

A text names facts in braces: ``{util}``, ``{kv_tokens:,}``. Facts that end in ``_gib`` or ``_mib`` are shown with
their unit. A part in brackets is left out if one of its facts is unknown; of alternatives ``[…|…]`` the first whose
facts are known is shown. ``[name?…]`` shows a part if a fact is known and true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from kvwatch.logs.derived_facts import with_derived
from kvwatch.logs.log_patterns import FactValue, LogFacts
from kvwatch.logs.stages import StartStage
from kvwatch.text.numbers import format_gib

_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_FACT = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_CONDITION = re.compile(r"(?:(\w+)\?)?")
_WHEN = re.compile(r"(?:not )?\w+")
_ACTION = re.compile(rf"(?:\(({_WHEN.pattern}(?:, {_WHEN.pattern})*)\) )?(.+)")
_SHARED_NAME = re.compile(r"<(\w+)>")


class VerdictGroup(StrEnum):
    """What the verdicts of a group have in common."""

    POOL = "KV cache too small"
    GPU = "GPU memory taken by others"
    OUT_OF_MEMORY = "out of memory"
    INCOMPATIBLE = "options that do not go together"
    NO_FAILURE = "no failure, or cause unknown"


_SHARED = """
    - tried: [ (tried to allocate {tried_mib}, {free_mib} free)]
    - not_memory: More memory does not help.
    - check_gpu: check that nothing else holds memory of this GPU (nvidia-smi)
    - find_process: find the process that holds [{others_gib}|it] (nvidia-smi; it may be a worker left from an
      earlier start) and end it, or choose another GPU
    - fewer_weights: put fewer weights on each GPU: a quantized or smaller model, or more GPUs
      (--tensor-parallel-size)
    - larger_share: give vLLM a larger share of the GPU with --gpu-memory-utilization[ ({util}
      now)][counts_other_processes?; 0.6.4 counts the memory of other processes as vLLM's own: add their share there,
      or use a later release]
    - lower_to_free_share: [set --gpu-memory-utilization to {free_share:.2f} or less|lower --gpu-memory-utilization]
    - lower_util: lower --gpu-memory-utilization[ to {lowered_util}| by 0.03 to 0.05]: the KV cache took the memory
      that this step needs
    - fp8: halve the bytes per token with --kv-cache-dtype fp8[options_known?| (unless it is set already: vLLM counts
      it)]. Check first that GPU and attention backend support it, then scales and answer quality on long contexts
    - smaller_batch: [chunked?|turn on chunked prefill and ]set --max-num-batched-tokens, for example to 2048 (8192 on
      a large GPU): if it follows --max-model-len, the profiling batch takes memory from the cache[ (up to {peak_gib}
      here)]
    - pipeline: vLLM's estimated length is too low: it charges all layers[ ({bytes_per_token:,.0f} bytes per token)]
      to the rank with the least memory, which holds only some of them. Move layers off that rank
      (VLLM_PP_LAYER_PARTITION), or set --max-model-len by that rank's own share in a release that checks it so
    """
_ITEM = re.compile(r"(?m)^\s*- ")
SHARED = {name: text for item in _ITEM.split(_SHARED)[1:] for name, _, text in [item.strip().partition(": ")]}
"""Texts that several actions or rows share, by name."""


@dataclass(frozen=True, slots=True)
class CauseAction:
    """One thing to do, if every fact of `when` is known and true; ``not name`` is the opposite."""

    text: str
    when: tuple[str, ...] = ()

    def applies(self, facts: LogFacts) -> bool:
        return all(
            bool(facts.get(name.removeprefix("not "))) != name.startswith("not ") for name in self.when
        )


@cache
def parse_text(text: str) -> tuple[str, tuple[CauseAction, ...]]:
    """The meaning and the actions in the text of a row."""
    text = _SHARED_NAME.sub(lambda found: SHARED.get(found[1], found[0]), text)
    meaning, *actions = (" ".join(item.split()) for item in _ITEM.split(text))
    parsed = (_ACTION.fullmatch(action) for action in actions)
    return meaning, tuple(CauseAction(one[2], tuple(_WHEN.findall(one[1] or ""))) for one in parsed if one)


@dataclass(frozen=True, slots=True)
class Cause:
    """A verdict on a start, and all that belongs to it."""

    verdict: str
    group: VerdictGroup
    text: str
    """The meaning and the actions."""
    words: tuple[str, ...] = ()
    """Every line that shows the cause has one of these words."""
    signs: tuple[str, ...] = ()
    """Patterns: an error line with one of `words` that matches one of them shows the cause."""
    hints: tuple[str, ...] = ()
    """Patterns of places in a traceback. They count if nothing better is found."""
    facts: tuple[str, ...] = ()
    """Patterns whose groups are numbers in the message."""
    evidence: tuple[str, ...] = ()
    """Facts whose lines are quoted after the error."""
    oom_functions: str = ""
    """A pattern of functions: memory that ran out in one of them has this cause."""
    oom_stages: tuple[StartStage, ...] = ()
    """Without a traceback, memory that ran out after one of these steps has this cause."""
    oom_from: StartStage = StartStage.NONE
    """Before this step, `oom_functions` do not count."""
    stops_after: tuple[StartStage, str] | None = None
    """A start that stops after this step, with this fact known and no error of its own, probably has this cause."""

    @property
    def generic(self) -> bool:
        """Whether it rests on PyTorch's error alone, which every program that uses a GPU may print."""
        return not self.signs and not self.hints

    def matches(self, text: str) -> bool:
        return any(word in text for word in self.words) and any(re.search(sign, text) for sign in self.signs)

    def hinted(self, text: str) -> bool:
        return any(re.search(hint, text) for hint in self.hints)

    def meaning(self, facts: LogFacts) -> str:
        return fill(parse_text(self.text)[0], with_derived(facts))

    def actions(self, facts: LogFacts) -> tuple[str, ...]:
        """The actions that apply to these facts. One that names an unknown fact is left out."""
        facts = with_derived(facts)
        actions = (one for one in parse_text(self.text)[1] if one.applies(facts))
        return tuple(text for one in actions if (text := fill(one.text, facts)))


def fill(text: str, facts: LogFacts) -> str:
    """`text` with facts; empty if a fact outside of brackets is unknown."""
    filled = [
        next((done for one in part.split("|") if (done := _fill(one, facts)) is not None), "")
        if number % 2
        else _fill(part, facts)
        for number, part in enumerate(_OPTIONAL.split(text))
    ]
    return "".join(part for part in filled if part is not None) if None not in filled else ""


def fact_names(text: str) -> Iterator[str]:
    """The facts that a text names."""
    yield from (found[1] for found in _FACT.finditer(text))
    for part in _OPTIONAL.findall(text):
        yield from (found[1] for one in part.split("|") if (found := _CONDITION.match(one)) and found[1])


def _fill(text: str, facts: LogFacts) -> str | None:
    condition = _CONDITION.match(text)
    if condition is not None and condition[1]:
        if not facts.get(condition[1]):
            return None
        text = text[condition.end() :]
    try:
        return _FACT.sub(lambda found: _show(found[1], facts[found[1]], found[2]), text)
    except KeyError:
        return None


def _show(name: str, value: FactValue, spec: str | None) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_gib"):
        return format_gib(value * (1 << 30))
    if name.endswith("_mib"):
        return f"{value:g} MiB"
    return format(value, spec or (".0f" if float(value).is_integer() else "g"))
