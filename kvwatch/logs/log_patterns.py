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


def _row(word: str, pattern: str, *, least: bool = False) -> LogPattern:
    for name, value in (("<N>", NUMBER), ("<G>", _GIB), ("<B>", _NOT_INSIDE_A_NUMBER)):
        pattern = pattern.replace(name, value)
    return LogPattern(word, re.compile(pattern), least)


PATTERNS: tuple[LogPattern, ...] = (
    # -- which vLLM ------------------------------------------------------------------------------------------
    _row("vLLM API server version", r"vLLM API server version (?P<version>[\w.+]+)"),
    _row("█  version", r"█  version (?P<version>\d[\w.+]*)"),
    _row("LLM engine (v", r"LLM engine \(v(?P<version>[\w.+]+)\)"),
    # -- the budget, v0 ---------------------------------------------------------------------------------------
    _row(
        "x gpu_memory_utilization",
        r"total_gpu_memory \((?P<total_gib><N>)<G>\) x gpu_memory_utilization \((?P<util><N>)\)"
        r" = (?P<budget_gib><N>)<G>",
    ),
    _row(
        "model weights take",
        r"model weights take (?P<weights_gib><N>)<G>; non_torch_memory takes (?P<non_torch_gib><N>)<G>; PyTorch"
        r" activation peak memory takes (?P<activation_gib><N>)<G>; the rest of the memory reserved for KV Cache is"
        r" (?P<available_kv_gib><N>)<G>",
    ),
    _row(
        "Memory profiling results:",  # 0.6.4
        up_to("total_gpu_memory=") + r"(?P<total_gib><N>)<G> initial_memory_usage=(?P<loaded_gib><N>)<G>"
        r" peak_torch_memory=(?P<peak_torch_gib><N>)<G>.*? non_torch_memory=(?P<non_torch_gib><N>)<G>"
        r" kv_cache_size=(?P<available_kv_gib><N>)<G> gpu_memory_utilization=(?P<util><N>)",
    ),
    _row("Loading model weights took", r"Loading model weights took (?P<weights_gib><N>)<G>"),
    # -- the budget, v1 ---------------------------------------------------------------------------------------
    _row("Model loading took", r"Model loading took (?P<weights_gib><N>)<G>"),
    _row(
        "Total non KV cache memory",  # at level DEBUG
        up_to("torch peak memory increase: ")
        + r"(?P<activation_gib><N>)<G>(?:; non-torch forward increase memory:"
        r" (?P<non_torch_gib><N>)<G>)?.*?; weights memory: (?P<weights_gib><N>)<G>",
    ),
    _row(
        "on startup. Desired GPU memory",
        r"\((?P<free_gib><N>)/(?P<total_gib><N>) GiB\) on startup\. Desired GPU memory utilization is"
        r" \((?P<util><N>), (?P<budget_gib><N>) GiB\)",
    ),
    _row(
        "for peak activation",
        up_to("Actual usage is ")
        + r"(?:(?P<weights_gib><N>) GiB for weight|(?P<consumed_gib><N>) GiB for consumed memory).*?"
        r"<B>(?P<activation_gib><N>) GiB for peak activation(?:, (?P<non_torch_gib><N>) GiB for non-torch memory)?,"
        r" and (?P<graphs_gib><N>) GiB for CUDAGraph memory",
    ),
    _row("Available KV cache memory", r"Available KV cache memory: (?P<available_kv_gib><N>)<G>", least=True),
    _row(
        "GiB for KV cache on node",  # CPU backend
        r"(?:Explicitly|Auto) set \((?P<available_kv_gib><N>)/(?P<total_gib><N>)\) GiB for KV cache",
        least=True,
    ),
    _row(
        "as specified by kv_cache_memory_bytes",
        r"Initial free memory (?P<initial_free_gib><N>) GiB, reserved (?P<kv_cache_memory_bytes_gib><N>) GiB",
    ),
    _row(
        "Estimated CUDA graph memory", r"Estimated CUDA graph memory: (?P<estimated_graphs_gib><N>) GiB total"
    ),
    _row("Graph capturing finished", r"Graph capturing finished in <N> secs, took (?P<graphs_gib><N>)<G>"),
    _row("CUDA graph pool memory", r"CUDA graph pool memory: (?P<graphs_gib><N>) GiB \(actual\)"),
    _row(
        "same effective KV cache size as before",
        up_to("current --gpu-memory-utilization=") + r"(?P<util><N>) is.*increase --gpu-memory-utilization to"
        r" (?P<suggested_util>\d\.\d+)",
    ),
    _row(
        "padding layers",
        r"Add (?P<padding_layers>\d+) padding layers, may waste at most (?P<padding_waste_percent><N>)%",
    ),
    # -- the pool ---------------------------------------------------------------------------------------------
    _row("KV cache size:", r"KV cache size: (?P<kv_tokens><N>) tokens", least=True),
    _row(
        "Maximum concurrency for",
        r"Maximum concurrency for (?P<max_model_len><N>) tokens per request: (?P<max_concurrency><N>)x",
        least=True,
    ),
    _row(
        "blocks: ",
        r"# (?:GPU|gpu|cuda|CUDA|cpu|xpu|hip|rocm|neuron) blocks: (?P<gpu_blocks>\d+), # CPU blocks",
        least=True,
    ),
    _row("with num_gpu_blocks_override=", r"with num_gpu_blocks_override=(?P<num_gpu_blocks_override>\d+)"),
    # -- settings that vLLM works out -------------------------------------------------------------------------
    _row("Using max model len", r"Using max model len (?P<max_model_len>\d+)"),
    _row("max_num_batched_tokens=", r"enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
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

OPTIONS: Mapping[str, str] = {
    "max_model_len": "max_model_len",
    "max_seq_len": "max_model_len",  # in the engine's configuration
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "gpu_memory_utilization": "util",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enforce_eager": "enforce_eager",
    "enable_lora": "enable_lora",
    "kv_transfer_config": "kv_transfer_config",
    "model": "model",
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
