"""Facts that follow from the facts of a log: for the texts of `causes`, and where the GPU's memory goes.

A new derived fact is one row of `DERIVED`, which may use the rows before it. It is not part of the JSON output. A
condition that does not hold is absent, like a number that is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor

from kvwatch.logs.log_patterns import FactValue, LogFacts, all_numbers, first_number

_ALMOST_FULL = 0.1
"""If less than this share of a GPU is free, no utilization makes room on it."""
_DESKTOP_GIB = 2.0
"""A desktop or a driver uses less than this; a forgotten server uses more."""
_REACHABLE = 1.3
"""A higher utilization enlarges the cache by this factor at most."""
_HIGHEST_UTIL = 0.97
"""A higher utilization fails."""
_FEW_REQUESTS = 1.5
"""Below this concurrency not even two requests of full length fit."""

Compute = Callable[[LogFacts], FactValue | None]


def with_derived(facts: LogFacts) -> LogFacts:
    """`facts` and what follows from them."""
    found = dict(facts)
    for name, compute in DERIVED.items():
        value = compute(found)
        if value is not None and value is not False:
            found[name] = value
    return found


# -- kinds of rows -------------------------------------------------------------------------------------------------


def _first(*names: str) -> Compute:
    return lambda facts: first_number(facts, *names)


def _minus(more: str, less: str) -> Compute:
    return lambda facts: n[0] - n[1] if (n := all_numbers(facts, more, less)) else None


def _ratio(above: str, below: str) -> Compute:
    return lambda facts: n[0] / n[1] if (n := all_numbers(facts, above, below)) and n[1] > 0 else None


def _below(limit: float, name: str) -> Compute:
    return lambda facts: (value := first_number(facts, name)) is not None and value < limit


def _above(limit: float, name: str) -> Compute:
    return lambda facts: (value := first_number(facts, name)) is not None and value > limit


def _hundredths(value: float) -> float:
    """Rounded down."""
    return floor(value * 100 + 1e-9) / 100


# -- rows that need more -------------------------------------------------------------------------------------------


def _pinned_by(facts: LogFacts) -> str | None:
    """The option that fixes the size of the KV cache: the utilization then has no effect."""
    if blocks := facts.get("num_gpu_blocks_override"):
        return f"--num-gpu-blocks-override {blocks}"
    if size := first_number(facts, "kv_cache_memory_bytes_gib"):
        return f"--kv-cache-memory-bytes {size:g} GiB"
    return "--kv-cache-memory-bytes" if facts.get("kv_cache_memory_bytes") else None


def _times(facts: LogFacts) -> float | None:
    """How many times as large the KV cache would have to be."""
    if sizes := all_numbers(facts, "needed_gib", "available_gib"):
        return sizes[0] / sizes[1] if sizes[1] > 0 else None
    return first_number(facts, "times_in_tokens")


def _batch_suffices(facts: LogFacts) -> bool:
    """Whether a smaller profiling batch frees enough: its activations exceed what is missing, or another start in
    the same log had enough."""
    before = all_numbers(facts, "needed_gib", "available_kv_gib")
    if before and before[1] >= before[0]:
        return True
    peak, times = first_number(facts, "peak_gib"), first_number(facts, "times_in_tokens")
    needed = first_number(facts, "needed_gib")
    available = first_number(facts, "available_gib", "available_kv_gib")
    if needed is None and available and times:
        needed = available * times
    return peak is not None and available is not None and needed is not None and peak > needed - available


def _batch_matters(facts: LogFacts) -> bool:
    """Whether the profiling batch may follow --max-model-len, so that a longer limit leaves less cache.

    In v1, whose message has GiB, prefill is chunked unless it was turned off, and the batch has its own size: the
    log has to show that it matters.
    """
    known = all_numbers(facts, "max_num_batched_tokens", "max_model_len")
    if known and 0 < known[0] < known[1]:
        return False
    return "chunked" not in facts or "batch_suffices" in facts


def _gpu_is_full(facts: LogFacts) -> bool:
    share, weights = first_number(facts, "free_share"), first_number(facts, "weights_gib")
    free = first_number(facts, "free_gib") or 0.0
    return share is not None and (share < _ALMOST_FULL or bool(weights and free <= weights))


def _reclaimable(facts: LogFacts) -> float | None:
    idle, tried = first_number(facts, "reserved_unallocated_gib"), first_number(facts, "tried_mib")
    return idle if idle and idle >= (tried or 0.0) / 1024 else None


DERIVED: Mapping[str, Compute] = {
    # -- one name for what releases name differently
    "fitting_tokens": _first("estimated_max_len", "kv_tokens"),
    "all_gib": _first("budget_gib", "desired_gib"),
    "pool_gib": _first("available_kv_gib", "kv_cache_memory_bytes_gib"),
    "cuda_graphs_gib": _first("graphs_gib", "estimated_graphs_gib"),
    "measured_peak_gib": _minus("peak_torch_gib", "loaded_gib"),
    "peak_gib": _first("activation_gib", "measured_peak_gib"),
    # -- a KV cache that is too small
    "pinned_by": _pinned_by,
    "pinned_blocks": lambda facts: str(facts.get("pinned_by", "")).startswith("--num-gpu-blocks-override"),
    "pinned_bytes": lambda facts: str(facts.get("pinned_by", "")).startswith("--kv-cache-memory-bytes"),
    "blocks_of_length": _ratio("max_model_len", "block_size"),
    "blocks_needed": lambda facts: ceil(n) + 1 if (n := first_number(facts, "blocks_of_length")) else None,
    "gib_per_token": _ratio("needed_gib", "max_model_len"),
    "bytes_per_token": lambda facts: n * (1 << 30) if (n := first_number(facts, "gib_per_token")) else None,
    "missing_gib": _minus("needed_gib", "available_gib"),
    "times_in_tokens": _ratio("max_model_len", "kv_tokens"),
    "times": _times,
    "far_too_small": _above(_REACHABLE, "times"),
    "missing_share": _ratio("missing_gib", "total_gib"),
    "exact_util": lambda facts: sum(n) if (n := all_numbers(facts, "missing_share", "util")) else None,
    "util_too_high": _above(_HIGHEST_UTIL, "exact_util"),
    "needed_util": lambda facts: ceil(n * 100) / 100 if (n := first_number(facts, "exact_util")) else None,
    "chunked": lambda facts: "needed_gib" in facts and facts.get("enable_chunked_prefill") is not False,
    "batch_suffices": _batch_suffices,
    "batch_matters": _batch_matters,
    "options_known": lambda facts: "model" in facts,
    "pipelined": _above(1, "pipeline_parallel_size"),
    "maybe_pipelined": lambda facts: (
        not {"pipeline_parallel_size", "model"} & facts.keys() and "needed_gib" in facts
    ),
    "reduced_cache": lambda facts: str(facts.get("kv_cache_dtype", "")).startswith(
        ("fp8", "int8", "int4", "nvfp4")
    ),
    # -- a GPU that is not free
    "low_util": _below(0.3, "util"),
    "counts_other_processes": lambda facts: str(facts.get("version", "0.6.4")).startswith("0.6.4"),
    "weights_share": _ratio("weights_gib", "all_gib"),
    "heavy_weights": _above(0.5, "weights_share"),
    "others_gib": _minus("total_gib", "free_gib"),
    "exact_free_share": _ratio("free_gib", "total_gib"),
    "free_share": lambda facts: (
        None if (n := first_number(facts, "exact_free_share")) is None else _hundredths(n)
    ),
    "gpu_is_full": _gpu_is_full,
    "desktop": _below(_DESKTOP_GIB, "others_gib"),
    "freed_gib": _minus("current_free_gib", "initial_free_gib"),
    # -- out of memory
    "lowered_util": lambda facts: (
        _hundredths(n - 0.05) if (n := first_number(facts, "util") or 0.0) > 0.1 else None
    ),
    "half_the_seqs": lambda facts: (
        max(n // 2, 1) if (n := first_number(facts, "dummy_requests", "max_num_seqs")) else None
    ),
    "reclaimable_gib": _reclaimable,
    # -- a KV cache that is small for its server
    "pool_share": _ratio("pool_gib", "all_gib"),
    "small_share": lambda facts: 0 < (first_number(facts, "pool_share") or 0.0) < 0.1,
    "graphs_to_pool": _ratio("cuda_graphs_gib", "pool_gib"),
    "graphs_exceed_cache": lambda facts: (first_number(facts, "graphs_to_pool") or 0.0) >= 1,
    "graphs_to_kv": _ratio("cuda_graphs_gib", "available_kv_gib"),
    "graphs_exceed_half": lambda facts: (first_number(facts, "graphs_to_kv") or 0.0) >= 0.5,
    "much_padding": lambda facts: (first_number(facts, "padding_waste_percent") or 0.0) >= 25,
    "few_requests": _below(_FEW_REQUESTS, "max_concurrency"),
    "small": lambda facts: bool(
        {"small_share", "graphs_exceed_cache", "much_padding", "few_requests"} & facts.keys()
    ),
}


# -- where the memory goes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """One step, in GiB: an amount, or what is subtracted from it (`takes`)."""

    what: str
    gib: float
    takes: bool = False


_PEAK, _OTHER = "weights and peak activations", "outside PyTorch"
_TAKEN = (
    ("weights", "weights_gib"),
    ("weights and memory outside PyTorch", "consumed_gib"),
    (_PEAK, "peak_torch_gib"),
    (_OTHER, "non_torch_gib"),
    ("peak activations", "activation_gib"),
    ("CUDA graphs", "estimated_graphs_gib"),
)
_ROUNDING_GIB = 0.05


def memory_budget(facts: LogFacts) -> tuple[BudgetStep, ...]:
    """GPU memory x utilization - weights - non-torch - activations - CUDA graphs = KV cache.

    It has only the steps that the log shows, or that follow from two of them; none if the log shows no budget.
    """
    budget, gpu = first_number(facts, "budget_gib", "desired_gib"), all_numbers(facts, "total_gib", "util")
    if budget is None and gpu:
        budget = gpu[0] * gpu[1]
    pool = first_number(facts, "available_gib", "available_kv_gib")
    taken = [
        BudgetStep(what, size, takes=True)
        for what, name in _TAKEN
        if (size := first_number(facts, name)) is not None
    ]
    if first_number(facts, "peak_torch_gib") is not None:
        taken = [step for step in taken if step.what in {_PEAK, _OTHER}]
    if budget is None or (not taken and pool is None):
        return ()
    steps = [BudgetStep("budget", round(budget, 2))]
    if gpu:
        steps = [
            BudgetStep("GPU memory", gpu[0]),
            BudgetStep(f"x utilization {gpu[1]:g} = budget", round(budget, 2)),
        ]
    if pool is None:
        return (*steps, *taken)
    rest = round(budget - sum(step.gib for step in taken) - pool, 2)
    if taken and rest >= _ROUNDING_GIB:
        taken.append(BudgetStep("not itemized in the log", rest, takes=True))
    return (*steps, *taken, BudgetStep("KV cache", pool))
