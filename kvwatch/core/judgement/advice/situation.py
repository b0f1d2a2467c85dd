"""What advice is chosen by: the evidence of a symptom, the server's configuration, its load and its lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvwatch.core.judgement.fits import Fits
from kvwatch.core.model.snapshot import CacheConfig


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of finished requests, tokens. `at_least` names the fields that are lower bounds, because they lie in
    vLLM's last bucket. No advice rests on those, nor on fewer than `fits.ENOUGH_REQUESTS` requests."""

    count: float = 0.0
    output_p50: float | None = None
    output_p95: float | None = None
    total_p50: float | None = None
    total_p95: float | None = None
    total_p99: float | None = None
    at_least: frozenset[str] = frozenset()

    def known(self, name: str, *, count: float = 0.0) -> float | None:
        """A length to advise by; None if it is unknown, a lower bound, or of fewer than `count` requests."""
        value: float | None = getattr(self, name)
        return None if name in self.at_least or self.count < count else value


@dataclass(frozen=True, slots=True)
class Situation:
    """One symptom of one engine (or target) at one moment. None is unknown.

    `suffering`: users notice it now. `backlogged`: requests have waited nearly all of the last minute, so more
    arrives than is finished. `most_running`: most requests that ran at once within the history. `ceiling`: a stated
    --max-num-seqs. `room_elsewhere`: other engines of the same target have room in their cache.
    """

    symptom: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    config: CacheConfig = field(default_factory=CacheConfig)
    generation: str = "v1"
    features: frozenset[str] = frozenset()
    capacity: float | None = None
    fits: Fits | None = None
    lengths: Lengths = field(default_factory=Lengths)
    max_model_len: float | None = None
    running: float | None = None
    waiting: float | None = None
    demand: float | None = None
    most_running: float | None = None
    ceiling: float | None = None
    hit_ratio: float | None = None
    suffering: bool = False
    backlogged: bool = False
    room_elsewhere: bool = False

    @property
    def eight_bit(self) -> bool:
        """Whether the cache has eight bits a value, or fewer, already."""
        return (self.config.cache_dtype or "").startswith(("fp8", "int8", "int4", "nvfp4", "turboquant"))

    @property
    def recomputing(self) -> bool:
        """Whether prompts are computed again and again, although nothing waits."""
        least = self.evidence.get("threshold_recomputed_prompt_tokens_at_least")
        found = self.evidence.get("recomputed_prompt_tokens_at_least")
        return least is not None and found is not None and found >= least

    @property
    def room_for_load(self) -> float | None:
        """By what share the load can grow before the cache is full; None if it is full now, or unknown."""
        return 1 / self.demand - 1 if self.demand is not None and 0 < self.demand < 1 else None
