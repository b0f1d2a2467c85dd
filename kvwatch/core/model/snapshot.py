"""The signals of one engine at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

NOT_YET = "not yet"
"""A reason that begins like this: the signal appears with the first request."""

FROM_LOG = "from a log"
"""The feature of a snapshot whose numbers come from a log, not from a page."""


class EngineKey(NamedTuple):
    """Identifies an engine. Data-parallel ranks of one server are engines of one target.

    `model_name` and `engine` are empty for the whole target.
    """

    target: str
    model_name: str = ""
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram as exposed. `bounds` are the finite upper bounds, ascending; `counts` the cumulative
    counts at them. Both are empty if the scrape requested only the sum and the count."""

    sum: float
    count: float
    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


Value = float | Mapping[str, float] | Histogram
"""A gauge or counter; a labelled family by its label's value; a histogram."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """vLLM's KV cache configuration as exposed; None is unknown."""

    block_size: float | None = None
    """Tokens per block; of a hybrid model the smallest of several sizes."""
    num_gpu_blocks: float | None = None
    """Blocks of this engine. Under data parallelism vLLM exposes the sum over engines; this is already divided."""
    cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_size_tokens: float | None = None
    kv_cache_max_concurrency: float | None = None
    mamba_block_size: float | None = None
    """Tokens per block of layers with a state, up to thousands. A shorter shared prefix is never found."""
    mamba_cache_mode: str | None = None
    prefix_match_unit: float | None = None
    hybrid: bool = False
    """Some layers keep a state of constant size (such as Mamba): blocks x block size is not the capacity."""
    known: bool = False
    """Whether a configuration was exposed."""
    labels: tuple[tuple[str, str], ...] = ()
    """All labels of the configuration, by name, to compare two servers."""

    @property
    def max_model_len(self) -> float | None:
        """Longest request in tokens, prompt and output: vLLM's capacity divided by its maximum concurrency."""
        if not self.kv_cache_size_tokens or not self.kv_cache_max_concurrency:
            return None
        length = self.kv_cache_size_tokens / self.kv_cache_max_concurrency
        return float(round(length)) if isfinite(length) else None

    @property
    def prefix_unit(self) -> float | None:
        """The fewest tokens of a shared prefix that the prefix cache can find."""
        return self.prefix_match_unit or max(
            (size for size in (self.block_size, self.mamba_block_size) if size), default=None
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The signals of one engine, or of the target (with an empty model and engine).

    Every signal is in `values`, or in `missing` with the reason. `caveats` say, by signal, what to know when reading
    its value. `generation` is ``v0`` or ``v1``; `features` are what else the exposed names show.
    """

    key: EngineKey
    values: Mapping[str, Value] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    config: CacheConfig = CacheConfig()
    generation: str = "v1"
    features: frozenset[str] = frozenset()
    served: bool = True
    """False until the page shows that a request was served; some releases expose no gauges before."""

    @property
    def never_used(self) -> bool:
        """No request was served yet, and the gauges appear only with the first one (v0, several API servers). So
        there is nothing to judge, and nothing is wrong."""
        return not self.served and any(reason.startswith(NOT_YET) for reason in self.missing.values())

    @property
    def cold(self) -> bool:
        """No token was generated since the start and no request finished. (Embedding models never generate.)"""
        return self.number("generation_tokens_total") == 0.0 and not self.number("requests_finished_total")

    def number(self, signal: str) -> float | None:
        """The value of a gauge or counter, summed over its label if it has one; None if missing."""
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
