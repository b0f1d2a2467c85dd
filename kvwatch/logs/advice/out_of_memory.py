"""Memory ran out, by what was being done."""

from __future__ import annotations

from kvwatch.logs.advice.wording import BATCH, FEWER_WEIGHTS, gib, lower_util
from kvwatch.logs.log_patterns import LogFacts, known, one


def _tried(facts: LogFacts) -> str:
    both = known(facts, "tried_mib", "free_mib")
    return f" ({both[0]:g} MiB wanted, {both[1]:g} MiB free)" if both else ""


def oom_loading(facts: LogFacts) -> str:
    return f"GPU memory ran out while the weights were loaded, before there is any KV cache{_tried(facts)}."


def for_oom_loading(_facts: LogFacts) -> list[str]:
    return [
        "see that nothing else holds memory of this GPU (nvidia-smi)",
        FEWER_WEIGHTS,
        "or keep some weights in CPU memory with --cpu-offload-gb, which is slow",
        "options of the cache (--max-model-len, --kv-cache-dtype) do not help: it has none yet",
    ]


def oom_profiling(facts: LogFacts) -> str:
    return (
        "GPU memory ran out in the trial batch that vLLM runs to measure activations, before there is any KV"
        f" cache{_tried(facts)}."
    )


def for_oom_profiling(_facts: LogFacts) -> list[str]:
    return [
        f"make the trial batch smaller: lower {BATCH} (for example 2048), then --max-num-seqs",
        "for models with images or video: fewer of them per request (--limit-mm-per-prompt)",
        "see that nothing else holds memory of this GPU (nvidia-smi)",
        FEWER_WEIGHTS,
    ]


def oom_sampler(facts: LogFacts) -> str:
    asked = one(facts, "dummy_requests")
    batch = f" with {asked:.0f} requests at once" if asked else ""
    return f"The cache was made, and the trial of the sampler{batch} found no memory left{_tried(facts)}."


def for_oom_sampler(facts: LogFacts) -> list[str]:
    asked = one(facts, "dummy_requests", "max_num_seqs")
    fewer = f"or set --max-num-seqs to {max(asked // 2, 1):.0f}" if asked else "or lower --max-num-seqs"
    return [lower_util(facts), f"{fewer}: the sampler needs memory for each of them"]


def oom_graphs(facts: LogFacts) -> str:
    return f"The cache was made, and capturing CUDA graphs found no memory left{_tried(facts)}."


def for_oom_graphs(facts: LogFacts) -> list[str]:
    return [
        lower_util(facts),
        "or capture fewer graphs: --max-cudagraph-capture-size, or a smaller --max-num-seqs",
        "or none at all with --enforce-eager, which costs speed",
    ]


def oom_kernels(facts: LogFacts) -> str:
    return f"The cache was made, and warming up kernels found no memory left{_tried(facts)}."


def for_oom_kernels(facts: LogFacts) -> list[str]:
    return [
        lower_util(facts),
        f"or lower {BATCH}: it is the size of the warm-up",
        "or leave the warm-up of DeepGEMM out with VLLM_DEEP_GEMM_WARMUP=skip, if it is that",
    ]


def oom_running(facts: LogFacts) -> str:
    return f"The server ran, and a step found no memory left for its activations{_tried(facts)}."


def for_oom_running(facts: LogFacts) -> list[str]:
    found = [lower_util(facts), f"or make steps smaller: lower {BATCH}"]
    idle, tried = one(facts, "reserved_unallocated_gib"), one(facts, "tried_mib")
    if idle and idle >= (tried or 0.0) / 1024:
        found.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may win back up to"
            f" {gib(idle)} that PyTorch has reserved and does not use"
        )
    return [*found, "see whether another process took memory since the start (nvidia-smi)"]
