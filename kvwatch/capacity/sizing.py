"""How many tokens and requests a cache of a given size holds, as vLLM 0.32 computes it.

The steps are those of `get_kv_cache_configs` and `get_kv_cache_capacity` in `v1/core/kv_cache_utils.py`; the block
size of models with a state is that of `Platform._align_hybrid_block_size`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from kvwatch.capacity.caches import GROWING, LOCAL, Cache, CacheKind, Demand, Model
from kvwatch.capacity.dtypes import DTYPES, MODEL_BYTES, CacheDtype, cache_dtype
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.groups import CacheGroup, CachePage, grouped, stages
from kvwatch.capacity.units import ceil_div

#: The smallest block that attention kernels on NVIDIA GPUs take.
KERNEL_BLOCK = 16
#: Blocks of latent attention beside states are multiples of this.
_LATENT_BLOCK = 128
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Flags:
    """How vLLM is to be started, in its own words. None: vLLM's default."""

    kv_cache_dtype: str = "auto"
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    block_size: int | None = None
    max_model_len: int | None = None
    batched: int = 8192
    prefix_caching: bool = True


@dataclass(frozen=True)
class Layout:
    """A model's cache on its GPUs, whatever their memory: everything that does not depend on how much there is."""

    model: Model
    flags: Flags
    dtype: CacheDtype
    block_size: int
    groups: tuple[CacheGroup, ...]
    stages: tuple[range, ...]

    @cached_property
    def demand(self) -> Demand:
        return _demand(self.model, self.flags)

    @cached_property
    def bytes_per_block(self) -> int:
        """One block on the rank that holds most, bytes."""
        return max(max(group.bytes_per_block(stage) for group in self.groups) for stage in self.stages)

    def token_bytes(self, cache: Cache) -> int:
        return cache.token_bytes(self.dtype, self.model_bytes, self.flags.tensor)

    @property
    def model_bytes(self) -> int:
        return MODEL_BYTES[self.model.dtype]

    def growing(self, stage: range) -> int:
        """Bytes that one more token takes for good on a rank."""
        kept = sum(self.token_bytes(cache) for cache in self._caches(stage) if cache.kind in GROWING)
        wide = sum(self.token_bytes(cache) for cache in self._caches(stage) if self._holds_all(cache))
        return ceil_div(kept, self.flags.context) + wide

    def windowed(self, stage: range) -> int:
        """Bytes that a token takes on a rank only until it falls out of the windows."""
        return sum(
            self.token_bytes(cache)
            for cache in self._caches(stage)
            if cache.kind in LOCAL and not self._holds_all(cache)
        )

    def _holds_all(self, cache: Cache) -> bool:
        """Whether no request is long enough for a token to fall out of the window."""
        longest = self.flags.max_model_len or self.model.max_len
        return cache.kind in LOCAL and longest is not None and cache.window >= longest

    @property
    def bytes_per_token_per_gpu(self) -> int:
        return max(self.growing(stage) for stage in self.stages)

    @property
    def windowed_bytes_per_token_per_gpu(self) -> int:
        return max(self.windowed(stage) for stage in self.stages)

    @property
    def bytes_per_token_total(self) -> int:
        return self.flags.tensor * sum(self.growing(stage) for stage in self.stages)

    def blocks(self, length: int) -> int:
        """Blocks that a request of that length holds at most, of all groups together."""
        return sum(group.blocks(length, self.demand) for group in self.groups)

    def needed_bytes(self, length: int) -> int:
        """Memory that such a request takes on the GPU that holds most."""
        return self.blocks(length) * self.bytes_per_block

    @property
    def uniform(self) -> bool:
        """Every token takes the same, so that a capacity in tokens means the same at any length."""
        return not self.model.has(CacheKind.SLIDING, CacheKind.CHUNKED, CacheKind.STATE, CacheKind.CROSS)

    def _caches(self, stage: range) -> list[Cache]:
        return [cache for layer in stage for cache in self.model.layers[layer]]


@dataclass(frozen=True)
class Sizing:
    """A layout with memory: what fits.

    `length` is `max_model_len`; without one, tokens are blocks × block size, which only uniform models allow.
    """

    layout: Layout
    memory: int
    length: int | None

    @property
    def num_blocks(self) -> int:
        """Blocks on every GPU; one of them, the null block, is never given out."""
        return self.memory // self.layout.bytes_per_block

    @property
    def max_concurrency(self) -> float | None:
        """Requests of full length at once, as vLLM logs it (the null block counted)."""
        return None if self.length is None else self.concurrency(self.length)

    @property
    def kv_cache_tokens(self) -> int:
        """Capacity in tokens, as vLLM logs it: at full length where there is one."""
        if self.max_concurrency is None or self.length is None:
            return self.num_blocks * self.layout.block_size * self.layout.flags.context
        return int(self.max_concurrency * self.length)

    @property
    def fits(self) -> bool:
        """One request of full length fits, with the null block set aside: else vLLM does not start."""
        if self.length is None:
            return self.num_blocks > 1
        return self.layout.needed_bytes(self.length) <= self._usable

    def concurrency(self, length: int) -> float:
        """Requests of a length that fit at once."""
        return self.num_blocks / self.layout.blocks(length)

    def longest(self, limit: int) -> int:
        """The longest request up to `limit` that fits; 0 if not even one token does (`estimate_max_model_len`)."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.layout.needed_bytes(middle) <= self._usable:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def _usable(self) -> int:
        return self.memory - self.layout.bytes_per_block


def layout_of(model: Model, flags: Flags) -> Layout:
    """A model's cache under these flags.

    Raises:
        PlanError: vLLM would not take these flags for this model.
    """
    dtype = _dtype(model, flags.kv_cache_dtype)
    _check(model, flags, dtype)
    layout = Layout(model, flags, dtype, 0, (), tuple(stages(len(model.layers), flags.pipeline)))
    model_bytes = MODEL_BYTES[model.dtype]
    state = max((_state(cache, flags, model_bytes) for cache in model.caches), default=0)
    block, padded_state = flags.block_size or model.block_size, state
    if state and model.page_heads:
        block, padded_state = _aligned(model, layout, block, state)
    pages = []
    for i, layer in enumerate(model.layers):
        for cache in layer:
            if cache.kind is CacheKind.STATE:
                own = _state(cache, flags, model_bytes)
                pages.append((i, CachePage(cache, block, padded_state, padded_state - own)))
            else:
                pages.append((i, CachePage(cache, block, layout.token_bytes(cache) * block)))
    found = replace(layout, block_size=block, groups=grouped(pages))
    if found.bytes_per_block <= 0:
        raise PlanError("by its configuration this model keeps nothing: a number in it is 0")
    return found


def sizing_of(layout: Layout, memory: int) -> Sizing:
    """What `memory` bytes on each GPU hold."""
    length = layout.flags.max_model_len or layout.model.max_len
    return Sizing(layout, memory, length)


def _demand(model: Model, flags: Flags) -> Demand:
    # Async scheduling, the default, overlaps one step more than the pipeline has ranks: `max_concurrent_batches`.
    # A model without any attention has no prefix caching: `is_prefix_caching_supported`.
    attends = any(cache.kind is not CacheKind.STATE for cache in model.caches)
    return Demand(
        in_flight=(flags.pipeline + 1) * flags.batched,
        batched=flags.batched,
        context=flags.context,
        prefix_caching=flags.prefix_caching and attends,
    )


def _state(cache: Cache, flags: Flags, model_bytes: int) -> int:
    return cache.state.bytes(flags.tensor, model_bytes) if cache.state else 0


def _aligned(model: Model, layout: Layout, block: int, state: int) -> tuple[int, int]:
    """Block size and bytes of a state's page: a block of attention must be as large as a state."""
    attending = CacheKind.LATENT if model.has(CacheKind.LATENT) else CacheKind.FULL
    if not model.has(attending):
        return block, state
    heads, size_k, size_v = model.page_heads or (1, 0, 0)
    latent = next((cache for cache in model.caches if cache.kind is CacheKind.LATENT), None)
    token = layout.token_bytes(latent or Cache(CacheKind.FULL, heads, size_k, size_v))
    unit = max(KERNEL_BLOCK, block, _LATENT_BLOCK if latent else 0)
    block = max(block, unit * ceil_div(state, unit * token))
    return block, block * token


def _dtype(model: Model, name: str) -> CacheDtype:
    found = cache_dtype(name if name != "auto" else model.quantized_cache or "auto")
    if model.has(CacheKind.INDEXER) and found.name.startswith("fp8") and found.name != "fp8_ds_mla":
        found = DTYPES[
            "fp8_ds_mla"
        ]  # sparse backends store FP8 so: `_canonicalize_sparse_mla_kv_cache_dtype`
    if found.name == "bfloat16" and model.has(CacheKind.INDEXER):
        found = DTYPES["auto"]
    return found


def _check(model: Model, flags: Flags, dtype: CacheDtype) -> None:
    for name, value in (
        ("--tensor-parallel-size", flags.tensor),
        ("--pipeline-parallel-size", flags.pipeline),
        ("--decode-context-parallel-size", flags.context),
    ):
        if not 1 <= value <= _MOST_RANKS:
            raise PlanError(f"{name} {value}: must be from 1 to {_MOST_RANKS}")
    if model.dtype not in MODEL_BYTES:
        raise PlanError(
            f"torch_dtype {model.dtype} in the configuration is not known here; known: {', '.join(MODEL_BYTES)}"
        )
    if flags.pipeline > len(model.layers):
        raise PlanError(
            f"--pipeline-parallel-size {flags.pipeline}: the model has {len(model.layers)} layers"
        )
    if model.heads and model.heads % flags.tensor and not model.has(CacheKind.LATENT):
        raise PlanError(
            f"--tensor-parallel-size {flags.tensor}: vLLM requires a divisor of the {model.heads} attention heads"
        )
    uneven = {
        cache.kv_heads
        for cache in model.caches
        if cache.kind not in {CacheKind.LATENT, CacheKind.INDEXER, CacheKind.STATE}
        and (
            cache.kv_heads % flags.tensor if cache.kv_heads >= flags.tensor else flags.tensor % cache.kv_heads
        )
    }
    if uneven:
        raise PlanError(
            f"--tensor-parallel-size {flags.tensor}: {min(uneven)} key-value heads can't be split evenly"
        )
    if flags.tensor % flags.context:
        raise PlanError(
            f"--decode-context-parallel-size {flags.context}: vLLM requires a divisor of --tensor-parallel-size"
        )
    if flags.context > 1:
        _check_context(model, flags)
    if dtype.latent_bytes and not model.has(CacheKind.LATENT):
        raise PlanError(
            f"--kv-cache-dtype {dtype.name} is for latent attention, which this model does not have"
        )
    if not dtype.latent and model.has(CacheKind.LATENT):
        raise PlanError(f"--kv-cache-dtype {dtype.name} is not for latent attention, which this model has")


def _check_context(model: Model, flags: Flags) -> None:
    if model.has(CacheKind.SLIDING, CacheKind.CHUNKED):
        raise PlanError(
            "--decode-context-parallel-size: vLLM does not support it for layers with a sliding window"
        )
    heads = max((cache.kv_heads for cache in model.caches if cache.kind is CacheKind.FULL), default=0)
    if heads and flags.tensor // heads < flags.context:
        raise PlanError(
            f"--decode-context-parallel-size {flags.context}: ranks can share tokens only where they repeat heads,"
            f" so at most --tensor-parallel-size / key-value heads = {max(flags.tensor // heads, 1)}"
        )
