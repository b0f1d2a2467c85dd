"""Models, cache layouts and formats that do not go together, whatever the memory."""

from __future__ import annotations

from kvwatch.logs.causes.row import Cause, VerdictGroup
from kvwatch.logs.log_patterns import up_to

_NO_BACKEND = up_to("No valid attention backend|is not valid for this configuration")
_NOT_MEMORY = "More memory does not help."

ROWS = (
    Cause(
        "kv_spec_page_mismatch",
        VerdictGroup.INCOMPATIBLE,
        "The layers of this model need KV cache pages of different sizes, and with this cache format no size is a"
        f" multiple of the others. {_NOT_MEMORY}",
        (
            (
                "use --kv-cache-dtype auto (the model's own format) or plain fp8[ instead of {kv_cache_dtype}]:"
                " formats with scales per token break the ratio of the pages"
            ),
            "or check whether a later release of vLLM pads the pages of this model",
        ),
        words=("page size", "unify_kv_cache"),
        signs=(
            up_to("page size ") + ".*is not divisible by the",
            up_to("[Cc]annot unify") + ".*page size",
            r"in unify_kv_cache_spec_page_size",
        ),
    ),
    Cause(
        "block_size_unsupported",
        VerdictGroup.INCOMPATIBLE,
        "The attention backend does not support [--block-size {block_size}|this --block-size][: it requires multiples"
        f" of {{block_size_multiple}}]. {_NOT_MEMORY}",
        (
            "remove --block-size: vLLM then chooses one that fits",
            "or set it to [a multiple of {block_size_multiple}|a size that the message names]",
        ),
        words=("block size", "block_size", "block-size"),
        signs=(
            r"No common block size for",
            r"share no supported KV cache block size",
            r"KV cache block size \d+ is not supported by",
            r"argument --block-size: invalid choice",
            _NO_BACKEND + ".*block_size not supported",
        ),
        facts=(
            r"(?:block size for|KV cache block size) (?P<block_size>\d+)",
            r"MultipleOf\((?P<block_size_multiple>\d+)\)",
            r"--block-size: invalid choice: '?(?P<block_size>\d+)",
        ),
    ),
    Cause(
        "kv_dtype_unsupported",
        VerdictGroup.INCOMPATIBLE,
        "This GPU or attention backend does not support [--kv-cache-dtype {kv_cache_dtype}|this format of the KV"
        f" cache]. {_NOT_MEMORY}",
        (
            "use --kv-cache-dtype auto",
            (
                "or a format that this GPU has: fp8_e4m3 requires compute capability 8.9 (Ada, Hopper), some backends"
                " support fp8_e5m2 on older GPUs"
            ),
            "or another attention backend: --attention-backend, in earlier releases VLLM_ATTENTION_BACKEND",
        ),
        words=("fp8", "FP8", "kv_cache_dtype", "kv-cache-dtype", "KV cache is not supported", "KV cache not"),
        signs=(
            r"type fp8e4nv not supported in this architecture",
            r"fp8e4nv data type is not supported",
            r"(?i)\b(?:fp8|bfloat16|quantized|nvfp4)\w*(?: with)? kv[- ]?cache(?: is)? not (?:yet )?supported",
            r"FlashAttention (?:V1 )?with FP8 KV cache not",
            r"FP8 kv is not supported",
            _NO_BACKEND + ".*kv_cache_dtype not supported",
            r"does not support (?:fp8|quantized) kv[- ]cache",
            r"is not supported with --kv-cache-dtype",
            r"argument --kv-cache-dtype: invalid choice",
            r"(?:Unknown|Unsupported|Invalid|Unrecognized) (?:(?:KV|kv)[ _]cache|FP8)[ _](?:data type|dtype)",
        ),
        facts=(r"--kv-cache-dtype: invalid choice: '?(?P<kv_cache_dtype>[\w-]+)",),
    ),
)
