"""The signals of one engine at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

#: How a reason begins that says: this will appear with the first request.
NOT_YET = "not yet"

#: The feature of a snapshot that was told by a log, not by a page.
FROM_LOG = "from a log"


class EngineKey(NamedTuple):
    """Whose numbers these are. Data-parallel ranks of one server are engines of one target.

    `model_name` and `engine` are empty for what concerns the whole target.
    """

    target: str
    model_name: str = ""
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram as exposed. `bounds` are the finite upper bounds, ascending; `counts` are the
    cumulative counts at them. Both are empty when only the sum and the count were asked for."""

    sum: float
    count: float
    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


#: A gauge or counter; a labelled family by its label's value; a histogram.
Value = float | Mapping[str, float] | Histogram


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What vLLM says of its KV cache; None is "it does not say" (in vLLM's own words: ``None``)."""

    block_size: float | None = None
    """Tokens per block; for hybrid models the smallest of several."""
    num_gpu_blocks: float | None = None
    """Blocks of this engine: under data parallelism vLLM repeats the sum over engines, divided here."""
    cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_size_tokens: float | None = None
    kv_cache_max_concurrency: float | None = None
    mamba_block_size: float | None = None
    """Tokens per block of the layers with a state, which may be thousands: no prefix shorter than it is found."""
    mamba_cache_mode: str | None = None
    prefix_match_unit: float | None = None
    hybrid: bool = False
    """Some layers keep a state of constant size (Mamba and the like): blocks x block size is no capacity."""
    known: bool = False
    """Whether a configuration was exposed at all."""
    labels: tuple[tuple[str, str], ...] = ()
    """Everything that vLLM says of it, in its own words, by name: to tell what two servers have different."""

    @property
    def max_model_len(self) -> float | None:
        """Longest request in tokens, prompt and output; vLLM's capacity is this times its maximum concurrency."""
        if not self.kv_cache_size_tokens or not self.kv_cache_max_concurrency:
            return None
        length = self.kv_cache_size_tokens / self.kv_cache_max_concurrency
        return float(round(length)) if isfinite(length) else None

    @property
    def prefix_unit(self) -> float | None:
        """Tokens that a shared beginning must have, at least, to be found in the prefix cache."""
        return self.prefix_match_unit or max(
            (size for size in (self.block_size, self.mamba_block_size) if size), default=None
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The signals of one engine (or, with an empty model and engine, of the target itself).

    Every signal is in `values` or in `missing` with the reason. `caveats` say, by signal, what to know when
    reading its value. `generation` is ``v0`` or ``v1``; `features` what else its names tell.
    """

    key: EngineKey
    values: Mapping[str, Value] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    config: CacheConfig = CacheConfig()
    generation: str = "v1"
    features: frozenset[str] = frozenset()
    served: bool = True
    """False until the page shows that a request was ever served; gauges may appear only then."""

    @property
    def untouched(self) -> bool:
        """Nothing was ever asked of this engine, and its gauges appear only with the first request (v0, several
        API servers). So there is nothing to judge, and nothing is wrong."""
        return not self.served and any(reason.startswith(NOT_YET) for reason in self.missing.values())

    @property
    def cold(self) -> bool:
        """Nothing was generated since the start, and no request finished: those of a model that embeds generate
        nothing, ever."""
        return self.number("generation_tokens_total") == 0.0 and not self.number("requests_finished_total")

    def number(self, signal: str) -> float | None:
        """A gauge's or counter's value, the sum over its label if it has one; None if missing."""
        value = self.values.get(signal)
        if value is None or isinstance(value, Histogram):
            return None
        return value if isinstance(value, float) else sum(value.values())

    def part(self, signal: str, label: str) -> float | None:
        """The value at one label value of a labelled signal; None if missing."""
        value = self.values.get(signal)
        return value.get(label) if isinstance(value, Mapping) else None

    def parts(self, signal: str) -> Mapping[str, float] | None:
        """All values of a labelled signal; None if missing."""
        value = self.values.get(signal)
        return value if isinstance(value, Mapping) else None

    def histogram(self, signal: str) -> Histogram | None:
        value = self.values.get(signal)
        return value if isinstance(value, Histogram) else None
