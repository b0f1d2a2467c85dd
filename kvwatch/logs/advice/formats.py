"""Models, layouts and formats that do not go together: no matter of how much memory there is."""

from __future__ import annotations

from kvwatch.logs.log_patterns import LogFacts, known, one


def state_blocks(facts: LogFacts) -> str:
    both = known(facts, "max_num_seqs", "state_blocks")
    sizes = f": --max-num-seqs is {both[0]:.0f}, and there are {both[1]:.0f}" if both else ""
    return f"This model keeps a state per sequence, and the cache has too few blocks for them{sizes}."


def for_state_blocks(facts: LogFacts) -> list[str]:
    blocks = one(facts, "state_blocks")
    return [
        f"set --max-num-seqs to {blocks:.0f} or less" if blocks else "set a smaller --max-num-seqs",
        (
            "or give the cache more memory, if so many are really served at once: the length of requests does"
            " not matter here"
        ),
    ]


def page_mismatch(_facts: LogFacts) -> str:
    return (
        "The layers of this model need pages of different sizes, and with this format of the KV cache none is a"
        " multiple of the others. It is no matter of how much memory there is."
    )


def for_page_mismatch(facts: LogFacts) -> list[str]:
    dtype = facts.get("kv_cache_dtype")
    instead = f" instead of {dtype}" if dtype else ""
    return [
        (
            f"use --kv-cache-dtype auto (that of the model) or plain fp8{instead}: formats with scales per token"
            " break the ratio of the pages"
        ),
        "or see whether a later release of vLLM pads the pages of this model",
    ]


def block_size(facts: LogFacts) -> str:
    size, step = one(facts, "block_size"), one(facts, "block_size_multiple")
    said = f"--block-size {size:.0f}" if size else "This --block-size"
    takes = f": the attention backend takes multiples of {step:.0f}" if step else " by the attention backend"
    return f"{said} is not supported{takes}. It is no matter of memory."


def for_block_size(facts: LogFacts) -> list[str]:
    step = one(facts, "block_size_multiple")
    return [
        "leave --block-size out: vLLM then takes one that fits",
        f"or set it to a multiple of {step:.0f}" if step else "or set it to a size that the message names",
    ]


def kv_dtype(facts: LogFacts) -> str:
    dtype = facts.get("kv_cache_dtype")
    said = f"--kv-cache-dtype {dtype}" if isinstance(dtype, str) else "This format of the KV cache"
    return f"{said} is not supported by this GPU or attention backend. It is no matter of memory."


def for_kv_dtype(_facts: LogFacts) -> list[str]:
    return [
        "use --kv-cache-dtype auto",
        (
            "or a format that this GPU has: fp8_e4m3 needs compute capability 8.9 (Ada, Hopper), some backends take"
            " fp8_e5m2 before that"
        ),
        "or another attention backend: --attention-backend, in earlier releases VLLM_ATTENTION_BACKEND",
    ]
