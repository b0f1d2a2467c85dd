"""Numbers that follow from the facts of a log: for the texts of `causes`, and where the GPU's memory goes.

A new derived fact is one row of `DERIVED`. It is computed for every log and is no part of the JSON output.
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
_LOW_UTIL = 0.3
_HEAVY_WEIGHTS = 0.5
"""Weights above this share of the budget are the reason if no memory is left."""
_REACHABLE = 1.3
"""A higher utilization enlarges the cache by this factor at most."""
_HIGHEST_UTIL = 0.97
_SMALL_CACHE = 0.1
"""A KV cache below this share of the budget is small."""
_FEW_REQUESTS = 1.5
"""Below this concurrency not even two requests of full length fit."""
_PADDING_PERCENT = 25
_HALF_WIDTH_OR_LESS = ("fp8", "int8", "int4", "nvfp4")


def with_derived(facts: LogFacts) -> LogFacts:
    """`facts` and what follows from them. A condition that does not hold is absent, like an unknown number."""
    found = dict(facts)
    for name, compute in DERIVED.items():
        value = compute(found)
        if value is not None and value is not False:
            found[name] = value
    return found


def _pinned_by(facts: LogFacts) -> str | None:
    """The option that fixes the size of the KV cache: the utilization then has no effect."""
    if blocks := facts.get("num_gpu_blocks_override"):
        return f"--num-gpu-blocks-override {blocks}"
    if size := first_number(facts, "kv_cache_memory_bytes_gib"):
        return f"--kv-cache-memory-bytes {size:g} GiB"
    return "--kv-cache-memory-bytes" if facts.get("kv_cache_memory_bytes") else None


def _difference(facts: LogFacts, more: str, less: str) -> float | None:
    both = all_numbers(facts, more, less)
    return both[0] - both[1] if both else None


def _ratio(facts: LogFacts, above: str, below: str) -> float | None:
    both = all_numbers(facts, above, below)
    return both[0] / both[1] if both and both[1] > 0 else None


def _free_share(facts: LogFacts) -> float | None:
    """The largest utilization, rounded down to hundredths, whose budget is free."""
    share = _ratio(facts, "free_gib", "total_gib")
    return None if share is None else floor(share * 100 + 1e-9) / 100


def _gpu_is_full(facts: LogFacts) -> bool:
    share, weights = first_number(facts, "free_share"), first_number(facts, "weights_gib")
    free = first_number(facts, "free_gib") or 0.0
    return share is not None and (share < _ALMOST_FULL or bool(weights and free <= weights))


def _counts_other_processes(facts: LogFacts) -> bool:
    version = str(facts.get("version", ""))
    return not version or version.startswith("0.6.4")


def _shortage(facts: LogFacts) -> float | None:
    """How many times as large the KV cache would have to be."""
    needed = _ratio(facts, "needed_gib", "available_gib")
    if all_numbers(facts, "needed_gib", "available_gib"):
        return needed
    return _ratio(facts, "max_model_len", "kv_tokens")


def _needed_util(facts: LogFacts) -> float | None:
    known = all_numbers(facts, "missing_gib", "total_gib", "util")
    return known[2] + known[0] / known[1] if known and known[1] else None


def _blocks_needed(facts: LogFacts) -> int | None:
    blocks = _ratio(facts, "max_model_len", "block_size")
    return None if blocks is None else ceil(blocks) + 1


def _bytes_per_token(facts: LogFacts) -> float | None:
    ratio = _ratio(facts, "needed_gib", "max_model_len")
    return None if ratio is None else round(ratio * (1 << 30))


def _batch_suffices(facts: LogFacts) -> bool:
    """Whether a smaller profiling batch frees enough: its activations exceed what is missing, or another start in
    the same log had enough."""
    peak, available = (
        first_number(facts, "peak_gib"),
        first_number(facts, "available_gib", "available_kv_gib"),
    )
    before = all_numbers(facts, "needed_gib", "available_kv_gib")
    if before and before[1] >= before[0]:
        return True
    needed = first_number(facts, "needed_gib")
    if needed is None and available and (times := _ratio(facts, "max_model_len", "kv_tokens")):
        needed = available * times
    return None not in (peak, available, needed) and (peak or 0.0) > (needed or 0.0) - (available or 0.0)


def _batch_matters(facts: LogFacts) -> bool:
    """Whether the profiling batch may follow --max-model-len, so that a longer limit leaves less cache.

    In v1, whose message has GiB, prefill is chunked unless it was turned off, and the batch has its own size: the
    log has to show that it matters.
    """
    known = all_numbers(facts, "max_num_batched_tokens", "max_model_len")
    if known and 0 < known[0] < known[1]:
        return False
    return "chunked" not in facts or "batch_suffices" in facts


def _pipelined(facts: LogFacts) -> bool:
    return (first_number(facts, "pipeline_parallel_size") or 1) > 1


def _maybe_pipelined(facts: LogFacts) -> bool:
    """A log without options does not show whether there is pipeline parallelism."""
    return not {"pipeline_parallel_size", "model"} & facts.keys() and "needed_gib" in facts


def _lowered_util(facts: LogFacts) -> float | None:
    util = first_number(facts, "util")
    return floor((util - 0.05) * 100 + 1e-9) / 100 if util and util > 0.1 else None


def _reclaimable(facts: LogFacts) -> float | None:
    idle, tried = first_number(facts, "reserved_unallocated_gib"), first_number(facts, "tried_mib")
    return idle if idle and idle >= (tried or 0.0) / 1024 else None


def _below(limit: float, value: float | None) -> bool:
    return value is not None and value < limit


def _at_most(limit: float, value: float | None) -> float | None:
    return value if value is not None and value <= limit else None


def _above(limit: float, value: float | None) -> float | None:
    return value if value is not None and value > limit else None


DERIVED: Mapping[str, Callable[[LogFacts], FactValue | None]] = {
    # -- one name for what releases name differently
    "fitting_tokens": lambda facts: first_number(facts, "estimated_max_len", "kv_tokens"),
    "all_gib": lambda facts: first_number(facts, "budget_gib", "desired_gib"),
    "pool_gib": lambda facts: first_number(facts, "available_kv_gib", "kv_cache_memory_bytes_gib"),
    "cuda_graphs_gib": lambda facts: first_number(facts, "graphs_gib", "estimated_graphs_gib"),
    "peak_gib": lambda facts: (
        first_number(facts, "activation_gib") or _difference(facts, "peak_torch_gib", "loaded_gib")
    ),
    "dummy_or_max_seqs": lambda facts: first_number(facts, "dummy_requests", "max_num_seqs"),
    # -- the pool
    "pinned_by": _pinned_by,
    "pinned_blocks": lambda facts: str(facts.get("pinned_by", "")).startswith("--num-gpu-blocks-override"),
    "pinned_bytes": lambda facts: str(facts.get("pinned_by", "")).startswith("--kv-cache-memory-bytes"),
    "blocks_needed": _blocks_needed,
    "bytes_per_token": _bytes_per_token,
    "missing_gib": lambda facts: _difference(facts, "needed_gib", "available_gib"),
    "far_too_small": lambda facts: _above(_REACHABLE, _shortage(facts)),
    "a_little_too_small": lambda facts: _at_most(_REACHABLE, _shortage(facts)),
    "util_too_high": lambda facts: _above(_HIGHEST_UTIL, _needed_util(facts)) is not None,
    "needed_util": lambda facts: (
        None if (util := _at_most(_HIGHEST_UTIL, _needed_util(facts))) is None else ceil(util * 100) / 100
    ),
    "chunked": lambda facts: "needed_gib" in facts and facts.get("enable_chunked_prefill") is not False,
    "batch_suffices": _batch_suffices,
    "batch_matters": _batch_matters,
    "pipelined": _pipelined,
    "maybe_pipelined": _maybe_pipelined,
    "reduced_cache": lambda facts: str(facts.get("kv_cache_dtype", "")).startswith(_HALF_WIDTH_OR_LESS),
    "options_known": lambda facts: "model" in facts,
    # -- the GPU
    "low_util": lambda facts: _below(_LOW_UTIL, first_number(facts, "util")),
    "counts_other_processes": _counts_other_processes,
    "weights_share": lambda facts: _ratio(facts, "weights_gib", "all_gib"),
    "heavy_weights": lambda facts: (first_number(facts, "weights_share") or 0.0) > _HEAVY_WEIGHTS,
    "others_gib": lambda facts: _difference(facts, "total_gib", "free_gib"),
    "free_share": _free_share,
    "gpu_is_full": _gpu_is_full,
    "desktop": lambda facts: _below(_DESKTOP_GIB, first_number(facts, "others_gib")),
    "freed_gib": lambda facts: _difference(facts, "current_free_gib", "initial_free_gib"),
    # -- out of memory
    "lowered_util": _lowered_util,
    "half_the_seqs": lambda facts: (
        None if not (seqs := first_number(facts, "dummy_or_max_seqs")) else max(seqs // 2, 1)
    ),
    "reclaimable_gib": _reclaimable,
    # -- a cache that is small for its server
    "small_share": lambda facts: (_ratio(facts, "pool_gib", "all_gib") or 1.0) < _SMALL_CACHE,
    "large_graphs": lambda facts: (_ratio(facts, "cuda_graphs_gib", "pool_gib") or 0.0) >= 1,
    "many_graphs": lambda facts: (_ratio(facts, "cuda_graphs_gib", "available_kv_gib") or 0.0) >= 0.5,
    "much_padding": lambda facts: (first_number(facts, "padding_waste_percent") or 0.0) >= _PADDING_PERCENT,
    "few_requests": lambda facts: _below(_FEW_REQUESTS, first_number(facts, "max_concurrency")),
    "small": lambda facts: bool({"small_share", "large_graphs", "much_padding", "few_requests"} & facts.keys()),
}  # fmt: skip


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
