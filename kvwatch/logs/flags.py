"""The options of vLLM that a log shows: those that matter here, and none that may be a secret.

They come in three spellings: the ``non-default args`` of today, the whole ``Namespace`` of earlier releases, and
the configuration that the engine prints. Only the names in `FLAGS` are ever taken out of such a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvwatch.logs.lines import LogLine
from kvwatch.text.redact import quote_log_line

Value = float | str | bool

#: Option -> the name of the fact, where it is one; else its own.
FLAGS: Mapping[str, str] = {
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

#: Words of lines that show options.
WORDS = ("non-default args", "args: Namespace(", "LLM engine (v", "vllm serve ", "api_server --")

_ITEM = re.compile(
    rf"(?:'(?P<quoted>{'|'.join(FLAGS)})':\s*|\b(?P<bare>{'|'.join(FLAGS)})=)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s,)}\]]+)"
)
_OPTION = re.compile(
    rf"--(?P<no>no-)?(?P<name>{'|'.join(sorted((name.replace('_', '-') for name in FLAGS), key=len, reverse=True))})"
    r"(?:[= ](?P<value>[^\s-][^\s]*))?(?=\s|$)"
)
_SUFFIX = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def flags_of(line: LogLine) -> dict[str, Value]:
    """The options that a line shows, by fact; empty if it shows none."""
    if not any(word in line.text for word in WORDS):
        return {}
    found: dict[str, Value] = {}
    for item in _ITEM.finditer(line.text):
        name = item["quoted"] or item["bare"]
        if (value := _value(item["value"].strip("'\""))) is not None:
            found[FLAGS[name]] = value
    if "vllm serve " in line.text or "api_server --" in line.text:
        for option in _OPTION.finditer(line.text):
            value = _value(option["value"]) if option["value"] else not option["no"]
            if value is not None:
                found.setdefault(FLAGS[option["name"].replace("-", "_")], value)
    return found


def _value(text: str) -> Value | None:
    """A number, a truth or a word; None for "not given"."""
    if text in {"None", "auto", ""}:
        return None
    if text in {"True", "False", "true", "false"}:
        return text.lower() == "true"
    number = re.fullmatch(r"(-?\d{1,15}(?:\.\d+)?)([kKmMgG]?)", text)
    if number is None:
        return quote_log_line(text)
    value = float(number[1]) * _SUFFIX.get(number[2], 1)
    return int(value) if value.is_integer() and "." not in number[1] else value
