"""What a layer keeps for a request. A model is a list of layers, each with its own caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvwatch.capacity.dtypes import CacheDtype
from kvwatch.capacity.units import ceil_div


class CacheKind(StrEnum):
    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked local attention"
    LATENT = "latent attention"
    INDEXER = "sparse indexer"
    CROSS = "cross attention"
    STATE = "constant state"


#: Kinds that keep every token of a request.
GROWING = frozenset({CacheKind.FULL, CacheKind.LATENT, CacheKind.INDEXER})
#: Kinds that keep the last tokens of a request.
LOCAL = frozenset({CacheKind.SLIDING, CacheKind.CHUNKED})


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The state of a Mamba or linear-attention layer: what vLLM's `MambaStateShapeCalculator` says of its shape.

    A convolution of `rows` rows over `inner` values and `groups` groups of `group_size` values, and a recurrent state
    of `recurrent` values of `recurrent_bytes` each (None: the model's type). Tensor parallel ranks divide all of it;
    groups that don't divide are repeated. `checkpoints`: states more that a request keeps during prefill, with prefix
    caching.
    """

    rows: int
    inner: int
    recurrent: int
    recurrent_bytes: int | None = None
    groups: int = 0
    group_size: int = 0
    checkpoints: int = 0

    def bytes(self, tensor: int, model_bytes: int) -> int:
        extra = 0 if not self.groups or self.groups % tensor == 0 else tensor - self.groups
        width = (self.inner + (self.groups + extra) * self.group_size) // tensor
        return self.rows * width * model_bytes + self.recurrent // tensor * (
            self.recurrent_bytes or model_bytes
        )


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of one layer.

    `kv_heads` in the whole model, `head_k` and `head_v` values a head (of a latent vector: `head_k` is its width;
    of an indexer: the bytes of a token). `window` tokens that a local layer looks back, or the chunk.
    """

    kind: CacheKind
    kv_heads: int = 1
    head_k: int = 0
    head_v: int = 0
    window: int = 0
    state: RecurrentState | None = None

    def token_bytes(self, dtype: CacheDtype, model_bytes: int, tensor: int) -> int:
        """Bytes of one token on one tensor parallel rank; of a state: 0.

        Heads are divided, and repeated where there are more ranks than heads. A latent vector is on every rank whole.
        """
        match self.kind:
            case CacheKind.STATE:
                return 0
            case CacheKind.INDEXER:
                return self.head_k
            case CacheKind.LATENT:
                return dtype.latent_token_bytes(self.head_k, model_bytes)
            case _:
                head = dtype.head_bytes(self.head_k, model_bytes) + dtype.head_bytes(self.head_v, model_bytes)
                return max(1, self.kv_heads // tensor) * head

    def blocks(self, length: int, block: int, on: Demand) -> int:
        """Blocks that a request of `length` tokens holds at most: vLLM's `max_memory_usage_bytes` by page."""
        match self.kind:
            case CacheKind.SLIDING:
                held = min(self.window - 1 + on.in_flight, length)
                return ceil_div(held, block) + 1  # a window need not begin where a block does
            case CacheKind.CHUNKED:
                return ceil_div(min(self.window + on.in_flight, length), block)
            case CacheKind.STATE:
                return 2 + (self.state.checkpoints if self.state else 0) if on.prefix_caching else 1
            case CacheKind.CROSS:
                return ceil_div(on.batched, block)
            case _:
                return ceil_div(ceil_div(length, on.context), block)


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides how many blocks a request holds, apart from its length.

    `in_flight`: tokens scheduled and not yet settled, whose blocks a window can't give back; `batched`: those of one
    step, which is what vLLM reserves for the encoder; `context`: ranks that share the tokens; `prefix_caching`:
    states are then kept at block ends.
    """

    in_flight: int
    batched: int
    context: int = 1
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its cache sees it.

    `layers` the caches of each layer, in order; a layer that uses another's cache has none. `dtype` and `max_len` as
    the configuration says. `family` is what the table calls it. `notes` are what had to be assumed.
    """

    family: str
    layers: tuple[tuple[Cache, ...], ...]
    heads: int
    dtype: str
    max_len: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    quantized_cache: str | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    """Estimates of the whole model (`kvwatch.capacity.parameters`); None if not estimated."""
    block_size: int = 16
    page_heads: tuple[int, int, int] | None = None
    """KV heads and sizes of K and V that vLLM aligns the pages of states with; None without states."""
    notes: tuple[str, ...] = field(default=())

    @property
    def caches(self) -> tuple[Cache, ...]:
        return tuple(cache for layer in self.layers for cache in layer)

    def has(self, *kinds: CacheKind) -> bool:
        return any(cache.kind in kinds for cache in self.caches)
