"""Why vLLM did not start: one row per verdict, with the words it is known by, the numbers in them, and what to do.

The verdicts are a closed set. Two rows may look alike and want opposite changes, which is why each row owns its
advice (`advice`). The order of the rows is the order in which they are looked for in a line. Errors that only say
that something failed elsewhere are `WRAPPERS`: never a cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvwatch.logs.advice import card, fine, formats, out_of_memory, pool
from kvwatch.logs.log_patterns import NUMBER, LogFacts, first

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Cause:
    """A verdict.

    `words`: a line that may be it holds one of them. `signs`: and it is, where one of these matches (and it is no
    line of information, which may quote anything). `facts`: patterns whose groups are numbers of the message.
    `weak` signs are places in a traceback: they count where nothing better is found. `meaning` is one sentence,
    with facts in it; `actions` are in the order to try.
    """

    verdict: str
    meaning: Callable[[LogFacts], str]
    actions: Callable[[LogFacts], list[str]]
    words: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def shows(self, text: str) -> bool:
        return any(word in text for word in self.words) and any(re.search(one, text) for one in self.signs)

    def hints(self, text: str) -> bool:
        return any(re.search(one, text) for one in self.weak)


_NO_BACKEND = "No valid attention backend|is not valid for this configuration"

CAUSES: tuple[Cause, ...] = (
    Cause(
        "kv_pool_smaller_than_max_len",
        meaning=pool.pool_too_small,
        actions=pool.for_pool_too_small,
        words=(
            "To serve at least one request",
            "max seq len",
            "KV cache is needed",
            "estimated maximum model length",
        ),
        signs=(
            r"To serve at least one request",
            # a console wraps the line, or it is cut
            r"models?'s max seq len \(|KV cache is needed, which|estimated maximum model length is",
            r"max seq len \(\d+\) is larger than the maximum number of tokens",
        ),
        facts=(
            r"max seq len \((?P<max_model_len>\d+)\)",
            r"stored in KV cache \((?P<kv_tokens>\d+)\)",
            rf"\((?P<needed_gib>{NUMBER}) Gi?B KV cache is needed",
            rf"available KV cache memory \((?P<available_gib>{NUMBER}) Gi?B\)",
            r"estimated maximum model length is (?P<estimated_max_len>\d+)\D",
        ),
    ),
    Cause(
        "no_room_for_any_block",
        meaning=card.no_room,
        actions=card.for_no_room,
        words=("No available memory for", "memory for the cache blocks"),
        signs=(r"No available memory for the cache|available memory for the cache blocks",),
        weak=(r"in raise_if_cache_size_invalid",),
    ),
    Cause(
        "free_memory_below_budget",
        meaning=card.below_budget,
        actions=card.for_below_budget,
        words=(
            "Free memory on device",
            "on kv cache allocation is less than",
            "less than desired GPU memory",
        ),
        signs=(
            r"\A(?>.*Free memory on device)(?!.*Desired GPU)",
            r"less than desired GPU memory",
            first("Available memory on node") + ".*is less than requested",
        ),
        facts=(
            rf"Free memory on device(?: [^\s(]+)? \((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\) on startup",
            (
                r"(?:desired GPU memory utilization|process's weights)"
                rf" \((?P<util>{NUMBER}), (?P<desired_gib>{NUMBER}) GiB\)"
            ),
            rf"Available memory on node \S+ \((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\)",
            rf"requested memory for kv \((?P<desired_gib>{NUMBER})/",
        ),
    ),
    Cause(
        "free_memory_grew_during_profiling",
        meaning=card.grew,
        actions=card.for_grew,
        words=("Error in memory profiling",),
        signs=(r"Error in memory profiling",),
        facts=(
            rf"Initial free memory (?P<initial_free_gib>{NUMBER})",
            rf"current free memory\s+(?P<current_free_gib>{NUMBER})",
        ),
    ),
    Cause(
        "oom_sampler_warmup",
        meaning=out_of_memory.oom_sampler,
        actions=out_of_memory.for_oom_sampler,
        words=("out of memory occurred when warming up",),
        signs=(r"out of memory occurred when warming up (?:sampler|pooler)",),
        facts=(r"warming up (?:sampler|pooler) with (?P<dummy_requests>\d+) dummy requests",),
    ),
    Cause(
        "state_blocks_below_max_num_seqs",
        meaning=formats.state_blocks,
        actions=formats.for_state_blocks,
        words=("exceeds available Mamba cache",),
        signs=(r"exceeds available Mamba cache",),
        facts=(
            r"max_num_seqs \((?P<max_num_seqs>\d+)\) exceeds available Mamba cache blocks \((?P<state_blocks>\d+)\)",
        ),
    ),
    Cause(
        "kv_spec_page_mismatch",
        meaning=formats.page_mismatch,
        actions=formats.for_page_mismatch,
        words=("page size", "unify_kv_cache"),
        signs=(
            first("page size ") + ".*is not divisible by the",
            first("[Cc]annot unify") + ".*page size",
            r"in unify_kv_cache_spec_page_size",
        ),
    ),
    Cause(
        "block_size_unsupported",
        meaning=formats.block_size,
        actions=formats.for_block_size,
        words=("block size", "block_size", "block-size"),
        signs=(
            r"No common block size for",
            r"share no supported KV cache block size",
            r"KV cache block size \d+ is not supported by",
            r"argument --block-size: invalid choice",
            first(_NO_BACKEND) + ".*block_size not supported",
        ),
        facts=(
            r"(?:block size for|KV cache block size) (?P<block_size>\d+)",
            r"MultipleOf\((?P<block_size_multiple>\d+)\)",
            r"--block-size: invalid choice: '?(?P<block_size>\d+)",
        ),
    ),
    Cause(
        "kv_dtype_unsupported",
        meaning=formats.kv_dtype,
        actions=formats.for_kv_dtype,
        words=("fp8", "FP8", "kv_cache_dtype", "kv-cache-dtype", "KV cache is not supported", "KV cache not"),
        signs=(
            r"type fp8e4nv not supported in this architecture",
            r"fp8e4nv data type is not supported",
            r"(?i)\b(?:fp8|bfloat16|quantized|nvfp4)\w*(?: with)? kv[- ]?cache(?: is)? not (?:yet )?supported",
            r"FlashAttention (?:V1 )?with FP8 KV cache not",
            r"FP8 kv is not supported",
            first(_NO_BACKEND) + ".*kv_cache_dtype not supported",
            r"does not support (?:fp8|quantized) kv[- ]cache",
            r"is not supported with --kv-cache-dtype",
            r"argument --kv-cache-dtype: invalid choice",
            r"(?:Unknown|Unsupported|Invalid|Unrecognized) (?:(?:KV|kv)[ _]cache|FP8)[ _](?:data type|dtype)",
        ),
        facts=(r"--kv-cache-dtype: invalid choice: '?(?P<kv_cache_dtype>[\w-]+)",),
    ),
    # Out of memory: which one is told by what vLLM was doing (`stages.oom_verdict`), but for the weak signs.
    Cause("oom_loading_weights", meaning=out_of_memory.oom_loading, actions=out_of_memory.for_oom_loading),
    Cause("oom_profiling", meaning=out_of_memory.oom_profiling, actions=out_of_memory.for_oom_profiling),
    Cause("oom_graph_capture", meaning=out_of_memory.oom_graphs, actions=out_of_memory.for_oom_graphs),
    Cause(
        "oom_kernel_warmup",
        meaning=out_of_memory.oom_kernels,
        actions=out_of_memory.for_oom_kernels,
        words=("warmup",),
        weak=(r"\bdeep_gemm_warmup\(", r"in (?:kernel_warmup|deep_gemm_warmup)$"),
    ),
    Cause(
        "oom_at_runtime_activation", meaning=out_of_memory.oom_running, actions=out_of_memory.for_oom_running
    ),
    # No failure, or none that can be told.
    Cause("ok", meaning=fine.ok, actions=lambda _: []),
    Cause("ok_but_tight", meaning=fine.tight, actions=fine.for_tight),
    Cause("unknown_root_cause_above", meaning=fine.unknown, actions=fine.for_unknown),
    Cause("no_vllm_log", meaning=fine.no_log, actions=lambda _: []),
)
BY_VERDICT = {row.verdict: row for row in CAUSES}

#: Memory ran out, in every spelling that PyTorch has had.
OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate|OutOfMemoryError|CUDA error: out of memory"
)
OOM_WORDS = ("out of memory", "OutOfMemoryError")
_SIZE = r"(?P<{0}>\d{{1,15}}+(?:\.\d{{1,15}}+)?+) (?P<{0}_unit>[KMG]i?B)"
_OOM_SIZES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Tried to allocate {_SIZE.format('tried_mib')}",
        rf"total capacity of {_SIZE.format('total_gib')}|; {_SIZE.format('total_gib_2')} total capacity",
        rf"of which {_SIZE.format('free_mib')} is free|; {_SIZE.format('free_mib_2')} free",
        rf"process has {_SIZE.format('in_use_gib')} memory in use|; {_SIZE.format('in_use_gib_2')} already allocated",
        rf"{_SIZE.format('reserved_unallocated_gib')} is reserved by PyTorch but unallocated",
    )
)
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

#: Errors that say that something failed elsewhere.
WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore encountered (?:a fatal error|an issue)"
    r"|WorkerProc (?:initialization failed|failed to start|hit an exception)|Engine process failed to start"
    r"|Engine loop (?:has died|is not running)|EngineDeadError|AsyncLLM output_handler failed"
    r"|(?:died|exited) unexpectedly"
    r"|Frontend process failed|See root cause above|Invocation of \w+ method failed|Background loop has errored"
)
WRAPPER_WORDS = (
    "nitialization failed", "failed to start", "fatal error", " unexpectedly", "hit an exception",
    "EngineDeadError", "root cause", "Engine loop", "output_handler failed", "method failed", "has errored",
)  # fmt: skip

#: Words of lines that may say a cause; their messages may go on in the next lines.
WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for row in CAUSES for word in row.words if row.signs))
WEAK_WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(word for row in CAUSES for word in row.words if not row.signs)
)


def sizes(text: str) -> dict[str, float]:
    """The numbers in a message of PyTorch that memory ran out, in the units that their names say."""
    found: dict[str, float] = {}
    for pattern in _OOM_SIZES:
        match = pattern.search(text)
        for name, value in (match.groupdict() if match else {}).items():
            if value is None or name.endswith("_unit"):
                continue
            amount = float(value) * _BYTES[match[f"{name}_unit"][0]] if match else 0.0
            found[name.removesuffix("_2")] = round(amount / (_GIB if "_gib" in name else 1 << 20), 2)
    return found
