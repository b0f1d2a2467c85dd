"""What vLLM says of its memory and its cache, as named numbers.

A row of `WORDINGS` is one sentence of one or more releases: a word that it is found by, and a pattern whose groups
are the facts. The names of facts say their units: ``_gib`` is GiB, ``_mib`` MiB, lengths are tokens. vLLM's own
"GB" before 0.8 are GiB. A sentence in which vLLM says why it failed stands in `causes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvwatch.logs.lines import LogLine

LogFacts = Mapping[str, float | str | bool]

NUMBER = r"-?\d++(?>(?:,\d++)*)(?>(?:\.\d++)?)"
"""A number as vLLM writes it. It gives back nothing, so that a long row of digits is read once: by atomic groups,
since Python before 3.11.5 leaves the last try of a possessive one in what is found."""
_START = r"(?<![\d.,])"
"""Before a number that anything may precede: one is not tried from its middle."""
_G = r"\s?(?:GiB|GB)"


def first(words: str) -> str:
    """Up to the first of these words, once: what goes on with ``.*`` would else be tried from each of them."""
    return rf"\A(?>.*?(?:{words}))"


@dataclass(frozen=True, slots=True)
class Wording:
    """A sentence of vLLM. `least`: of ranks that say it with other numbers, the least counts; else the newest."""

    word: str
    pattern: re.Pattern[str]
    least: bool = False


def _w(word: str, pattern: str, *, least: bool = False) -> Wording:
    return Wording(
        word, re.compile(pattern.replace("<N>", NUMBER).replace("<G>", _G).replace("<B>", _START)), least
    )


WORDINGS: tuple[Wording, ...] = (
    # -- which vLLM ------------------------------------------------------------------------------------------
    _w("vLLM API server version", r"vLLM API server version (?P<version>[\w.+]+)"),
    _w("█  version", r"█  version (?P<version>\d[\w.+]*)"),
    _w("LLM engine (v", r"LLM engine \(v(?P<version>[\w.+]+)\)"),
    # -- the budget, v0 ---------------------------------------------------------------------------------------
    _w(
        "x gpu_memory_utilization",
        r"total_gpu_memory \((?P<total_gib><N>)<G>\) x gpu_memory_utilization \((?P<util><N>)\)"
        r" = (?P<budget_gib><N>)<G>",
    ),
    _w(
        "model weights take",
        r"model weights take (?P<weights_gib><N>)<G>; non_torch_memory takes (?P<non_torch_gib><N>)<G>; PyTorch"
        r" activation peak memory takes (?P<activation_gib><N>)<G>; the rest of the memory reserved for KV Cache is"
        r" (?P<available_kv_gib><N>)<G>",
    ),
    _w(
        "Memory profiling results:",  # 0.6.4
        first("total_gpu_memory=") + r"(?P<total_gib><N>)<G> initial_memory_usage=(?P<loaded_gib><N>)<G>"
        r" peak_torch_memory=(?P<peak_torch_gib><N>)<G>.*? non_torch_memory=(?P<non_torch_gib><N>)<G>"
        r" kv_cache_size=(?P<available_kv_gib><N>)<G> gpu_memory_utilization=(?P<util><N>)",
    ),
    _w("Loading model weights took", r"Loading model weights took (?P<weights_gib><N>)<G>"),
    # -- the budget, v1 ---------------------------------------------------------------------------------------
    _w("Model loading took", r"Model loading took (?P<weights_gib><N>)<G>"),
    _w(
        "Total non KV cache memory",  # at level DEBUG
        first("torch peak memory increase: ")
        + r"(?P<activation_gib><N>)<G>(?:; non-torch forward increase memory:"
        r" (?P<non_torch_gib><N>)<G>)?.*?; weights memory: (?P<weights_gib><N>)<G>",
    ),
    _w(
        "on startup. Desired GPU memory",
        r"\((?P<free_gib><N>)/(?P<total_gib><N>) GiB\) on startup\. Desired GPU memory utilization is"
        r" \((?P<util><N>), (?P<budget_gib><N>) GiB\)",
    ),
    _w(
        "for peak activation",
        first("Actual usage is ")
        + r"(?:(?P<weights_gib><N>) GiB for weight|(?P<consumed_gib><N>) GiB for consumed memory).*?"
        r"<B>(?P<activation_gib><N>) GiB for peak activation(?:, (?P<non_torch_gib><N>) GiB for non-torch memory)?,"
        r" and (?P<graphs_gib><N>) GiB for CUDAGraph memory",
    ),
    _w("Available KV cache memory", r"Available KV cache memory: (?P<available_kv_gib><N>)<G>", least=True),
    _w(
        "GiB for KV cache on node",  # CPU backend
        r"(?:Explicitly|Auto) set \((?P<available_kv_gib><N>)/(?P<total_gib><N>)\) GiB for KV cache",
        least=True,
    ),
    _w(
        "as specified by kv_cache_memory_bytes",
        r"Initial free memory (?P<initial_free_gib><N>) GiB, reserved (?P<kv_cache_memory_bytes_gib><N>) GiB",
    ),
    _w(
        "Estimated CUDA graph memory", r"Estimated CUDA graph memory: (?P<estimated_graphs_gib><N>) GiB total"
    ),
    _w("Graph capturing finished", r"Graph capturing finished in <N> secs, took (?P<graphs_gib><N>)<G>"),
    _w("CUDA graph pool memory", r"CUDA graph pool memory: (?P<graphs_gib><N>) GiB \(actual\)"),
    _w(
        "same effective KV cache size as before",
        first("current --gpu-memory-utilization=") + r"(?P<util><N>) is.*increase --gpu-memory-utilization to"
        r" (?P<suggested_util>\d\.\d+)",
    ),
    _w(
        "padding layers",
        r"Add (?P<padding_layers>\d+) padding layers, may waste at most (?P<padding_waste_percent><N>)%",
    ),
    # -- the pool ---------------------------------------------------------------------------------------------
    _w("KV cache size:", r"KV cache size: (?P<kv_tokens><N>) tokens", least=True),
    _w(
        "Maximum concurrency for",
        r"Maximum concurrency for (?P<max_model_len><N>) tokens per request: (?P<max_concurrency><N>)x",
        least=True,
    ),
    _w(
        "blocks: ",
        r"# (?:GPU|gpu|cuda|CUDA|cpu|xpu|hip|rocm|neuron) blocks: (?P<gpu_blocks>\d+), # CPU blocks",
        least=True,
    ),
    _w("with num_gpu_blocks_override=", r"with num_gpu_blocks_override=(?P<num_gpu_blocks_override>\d+)"),
    # -- settings that vLLM works out -------------------------------------------------------------------------
    _w("Using max model len", r"Using max model len (?P<max_model_len>\d+)"),
    _w("max_num_batched_tokens=", r"enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
)

#: Words that lines with facts are found by.
WORDS: tuple[str, ...] = tuple(dict.fromkeys(row.word for row in WORDINGS))

_TEXTS = frozenset({"version", "kv_cache_dtype"})
_DIGITS = 18
"""What is longer is no number of vLLM's."""
_WORD = 60
"""And what is longer than this no word."""


def log_facts_of(line: LogLine) -> list[tuple[str, float | str, bool]]:
    """The facts that a line says: name, value, and whether the least of several ranks counts."""
    found = []
    for row in WORDINGS:
        if row.word in line.text and (match := row.pattern.search(line.text)):
            found += [(name, value, row.least) for name, value in numbers(match).items()]
    return found


def numbers(match: re.Match[str]) -> dict[str, float | str]:
    """The groups of a match as facts."""
    return {
        name: text if name in _TEXTS else number(text)
        for name, text in match.groupdict().items()
        if text is not None and len(text) <= (_WORD if name in _TEXTS else _DIGITS)
    }


def number(text: str) -> float:
    """A number as vLLM writes it; a whole one without a point is whole in JSON too."""
    text = text.replace(",", "")
    return float(text) if "." in text else int(text)


def known(facts: LogFacts, *names: str) -> list[float] | None:
    """The numbers by these names, if all are known."""
    values = [facts.get(name) for name in names]
    found = [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return found if len(found) == len(names) else None


def one(facts: LogFacts, *names: str) -> float | None:
    """The first of these numbers that is known."""
    found: Iterable[float] = (values[0] for name in names if (values := known(facts, name)))
    return next(iter(found), None)
