"""The settings of the judgement of one target. Validated once, then immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvwatch.core.dialect.vllm import Vocabulary


@dataclass(frozen=True)
class Policy:
    """The settings of the judgement of one target. Times are in seconds.

    `thresholds` overrides defaults by name (`kvwatch.core.judgement.thresholds`). `max_num_seqs` is the server's
    --max-num-seqs, if the operator sets it; otherwise kvwatch infers the ceiling from a plateau.
    """

    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()
    """Ids of symptoms that are not judged."""
    max_num_seqs: float | None = None
    gpus: tuple[str, ...] = ()
    """The server's GPUs (`Gpu.matches`); empty: all that are read."""
    full_interval_s: float = 15.0
    """How often buckets, information families and slow signals are read."""
    min_observations: float = 20.0
    """A quantile needs at least this many observations."""
    unknown_grace_s: float = 60.0
    """How long a verdict may be unknown before the symptom's state becomes unknown."""
    history_s: float = 600.0
    """How long samples are kept at full resolution."""
    max_events: int = 200
