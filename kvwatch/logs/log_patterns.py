"""The numbers and options in vLLM's log lines, as named facts.

A new fact is one row here: in `PATTERNS` for a number in a message, in `OPTIONS` for an option of vLLM. Messages in
which vLLM says why it failed belong to their row in `causes`.

The name of a fact states its unit: ``_gib`` is GiB, ``_mib`` is MiB, lengths are tokens. The "GB" that vLLM printed
before 0.8 are GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvwatch.logs.lines import LogLine
from kvwatch.text.redact import quote_log_line

FactValue = float | str | bool
LogFacts = Mapping[str, FactValue]

NUMBER = r"-?\d++(?>(?:,\d++)*)(?>(?:\.\d++)?)"
"""A number as vLLM writes it. The groups are atomic, so a long row of digits is read once; a possessive group would
not do, because Python before 3.11.5 leaves its last try in the match."""
_NOT_INSIDE_A_NUMBER = r"(?<![\d.,])"
_GIB = r"\s?(?:GiB|GB)"


def up_to(words: str) -> str:
    """A pattern for everything up to the first of `words`. A ``.*`` after it is then tried from one place only."""
    return rf"\A(?>.*?(?:{words}))"


# -- numbers in messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A message of one or more vLLM releases: `word` finds its line, the groups of `pattern` are facts.

    Ranks may report different numbers. The least counts if `least`, else the newest.
    """

    word: str
    pattern: re.Pattern[str]
    least: bool = False


def _row(pattern: str, word: str = "", *, least: bool = False) -> LogPattern:
    """In `pattern`, ``<name>`` is a number with that name; capitals stand for what is not captured. `word` is what
    the pattern begins with, unless it is given."""
    word = word or re.split(r"[<(\\]", pattern)[0]
    for name, value in (("<N>", NUMBER), ("<G>", _GIB), ("<B>", _NOT_INSIDE_A_NUMBER)):
        pattern = pattern.replace(name, value)
    named = re.sub(r"(?<!\?P)<(\w+)>", lambda found: f"(?P<{found[1]}>{NUMBER})", pattern)
    return LogPattern(word, re.compile(named), least)


PATTERNS: tuple[LogPattern, ...] = (
    # -- which vLLM ------------------------------------------------------------------------------------------
    _row(r"vLLM API server version (?P<version>[\w.+]+)"),
    _row(r"█  version (?P<version>\d[\w.+]*)"),
    _row(r"LLM engine \(v(?P<version>[\w.+]+)\)", "LLM engine (v"),
    # -- the budget, v0 ---------------------------------------------------------------------------------------
    _row(r"total_gpu_memory \(<total_gib><G>\) x gpu_memory_utilization \(<util>\) = <budget_gib><G>"),
    _row(
        r"model weights take <weights_gib><G>; non_torch_memory takes <non_torch_gib><G>; PyTorch activation peak"
        r" memory takes <activation_gib><G>; the rest of the memory reserved for KV Cache is <available_kv_gib><G>",
    ),
    _row(  # 0.6.4
        up_to("total_gpu_memory=") + r"<total_gib><G> initial_memory_usage=<loaded_gib><G>"
        r" peak_torch_memory=<peak_torch_gib><G>.*? non_torch_memory=<non_torch_gib><G>"
        r" kv_cache_size=<available_kv_gib><G> gpu_memory_utilization=<util>",
        "Memory profiling results:",
    ),
    _row(r"Loading model weights took <weights_gib><G>"),
    # -- the budget, v1 ---------------------------------------------------------------------------------------
    _row(r"Model loading took <weights_gib><G>"),
    _row(  # at level DEBUG
        up_to("torch peak memory increase: ") + r"<activation_gib><G>(?:; non-torch forward increase memory:"
        r" <non_torch_gib><G>)?.*?; weights memory: <weights_gib><G>",
        "Total non KV cache memory",
    ),
    _row(
        r"\(<free_gib>/<total_gib> GiB\) on startup\. Desired GPU memory utilization is \(<util>, <budget_gib> GiB\)",
        "on startup. Desired GPU memory",
    ),
    _row(
        up_to("Actual usage is ")
        + r"(?:<weights_gib> GiB for weight|<consumed_gib> GiB for consumed memory).*?"
        r"<B><activation_gib> GiB for peak activation(?:, <non_torch_gib> GiB for non-torch memory)?,"
        r" and <graphs_gib> GiB for CUDAGraph memory",
        "for peak activation",
    ),
    _row(r"Available KV cache memory: <available_kv_gib><G>", least=True),
    _row(  # CPU backend
        r"(?:Explicitly|Auto) set \(<available_kv_gib>/<total_gib>\) GiB for KV cache",
        "GiB for KV cache on node",
        least=True,
    ),
    _row(
        r"Initial free memory <initial_free_gib> GiB, reserved <kv_cache_memory_bytes_gib> GiB",
        "as specified by kv_cache_memory_bytes",
    ),
    _row(r"Estimated CUDA graph memory: <estimated_graphs_gib> GiB total"),
    _row(r"Graph capturing finished in <N> secs, took <graphs_gib><G>"),
    _row(r"CUDA graph pool memory: <graphs_gib> GiB \(actual\)"),
    _row(
        up_to("current --gpu-memory-utilization=")
        + r"<util> is.*increase --gpu-memory-utilization to (?P<suggested_util>\d\.\d+)",
        "same effective KV cache size as before",
    ),
    _row(
        r"Add (?P<padding_layers>\d+) padding layers, may waste at most <padding_waste_percent>%",
        "padding layers",
    ),
    # -- the size of the KV cache -----------------------------------------------------------------------------
    _row(r"KV cache size: <kv_tokens> tokens", least=True),
    _row(r"Maximum concurrency for <max_model_len> tokens per request: <max_concurrency>x", least=True),
    _row(
        r"# (?:GPU|gpu|cuda|CUDA|cpu|xpu|hip|rocm|neuron) blocks: (?P<gpu_blocks>\d+), # CPU blocks",
        "blocks: ",
        least=True,
    ),
    _row(r"with num_gpu_blocks_override=(?P<num_gpu_blocks_override>\d+)"),
    # -- settings that vLLM works out -------------------------------------------------------------------------
    _row(r"Using max model len (?P<max_model_len>\d+)"),
    _row(r"enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
)

_TEXTS = frozenset({"version", "kv_cache_dtype"})
"""Facts that are words."""
_LONGEST_NUMBER = 18
_LONGEST_WORD = 60


def read_facts(line: LogLine) -> Iterator[tuple[str, FactValue, bool]]:
    """The facts in a line: name, value, and whether the least of several ranks counts."""
    for row in PATTERNS:
        if row.word in line.text and (match := row.pattern.search(line.text)):
            yield from ((name, value, row.least) for name, value in facts_of_match(match).items())


def facts_of_match(match: re.Match[str]) -> dict[str, float | str]:
    """The groups of a match as facts, without those too long to be vLLM's."""
    return {
        name: text if name in _TEXTS else _number(text)
        for name, text in match.groupdict().items()
        if text is not None and len(text) <= (_LONGEST_WORD if name in _TEXTS else _LONGEST_NUMBER)
    }


def _number(text: str) -> float:
    text = text.replace(",", "")
    return float(text) if "." in text else int(text)


def all_numbers(facts: LogFacts, *names: str) -> list[float] | None:
    """The numbers with these names; None unless all are known."""
    values = [facts.get(name) for name in names]
    found = [
        float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return found if len(found) == len(names) else None


def first_number(facts: LogFacts, *names: str) -> float | None:
    """The first known number of these names."""
    found: Iterable[float] = (values[0] for name in names if (values := all_numbers(facts, name)))
    return next(iter(found), None)


# -- options -------------------------------------------------------------------------------------------------------

_SAME_NAME = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes",
    "num_gpu_blocks_override", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "enable_lora",
    "kv_transfer_config", "model",
)  # fmt: skip
OPTIONS: Mapping[str, str] = {
    **{name: name for name in _SAME_NAME},
    "max_seq_len": "max_model_len",  # in the engine's configuration
    "gpu_memory_utilization": "util",
}
"""Options of vLLM and their facts. No other option is read, because it may be a secret."""
_COMMANDS = ("vllm serve ", "api_server --")
OPTION_WORDS = ("non-default args", "args: Namespace(", "LLM engine (v", *_COMMANDS)
"""Words of lines with options: today's ``non-default args``, the ``Namespace`` of earlier releases, the
configuration that the engine prints, and command lines."""

_ITEM = re.compile(
    rf"(?:'(?P<quoted>{'|'.join(OPTIONS)})':\s*|\b(?P<bare>{'|'.join(OPTIONS)})=)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s,)}\]]+)"
)
_FLAGS = "|".join(sorted((name.replace("_", "-") for name in OPTIONS), key=len, reverse=True))
_ARGUMENT = re.compile(
    rf"--(?P<no>no-)?(?P<name>{_FLAGS})"
    r"(?:[= ](?P<value>[^\s-][^\s]*))?(?=\s|$)"
)
_SUFFIX = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_options(line: LogLine) -> dict[str, FactValue]:
    """The options in a line, by fact."""
    if not any(word in line.text for word in OPTION_WORDS):
        return {}
    found: dict[str, FactValue] = {}
    for item in _ITEM.finditer(line.text):
        if (value := _option_value(item["value"].strip("'\""))) is not None:
            found[OPTIONS[item["quoted"] or item["bare"]]] = value
    if any(word in line.text for word in _COMMANDS):
        for argument in _ARGUMENT.finditer(line.text):
            value = _option_value(argument["value"]) if argument["value"] else not argument["no"]
            if value is not None:
                found.setdefault(OPTIONS[argument["name"].replace("-", "_")], value)
    return found


def _option_value(text: str) -> FactValue | None:
    """A number, a boolean or a word; None if the option has no value of its own."""
    if text in {"None", "auto", ""}:
        return None
    if text in {"True", "False", "true", "false"}:
        return text.lower() == "true"
    number = re.fullmatch(r"(-?\d{1,15}(?:\.\d+)?)([kKmMgG]?)", text)
    if number is None:
        return quote_log_line(text)
    value = float(number[1]) * _SUFFIX.get(number[2], 1)
    return int(value) if value.is_integer() and "." not in number[1] else value
