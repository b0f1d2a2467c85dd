"""What an operator can set about the judgement. Validated once, immutable after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvwatch.core.dialect.vllm import Vocabulary


@dataclass(frozen=True)
class Policy:
    """Settings of the judgement of one target.

    `thresholds` overrides defaults by name (`kvwatch.core.judgement.thresholds`). `max_num_seqs` is the server's own
    limit, where the operator states it; otherwise the ceiling is inferred from a plateau. Times in seconds.
    """

    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()
    """Ids of symptoms that are not judged."""
    max_num_seqs: float | None = None
    gpus: tuple[str, ...] = ()
    """Which GPUs are the server's (`kvwatch.core.model.gpu`); none named: all that are read."""
    full_interval_s: float = 15.0
    """How often buckets and information families are read."""
    min_observations: float = 20.0
    """Fewer observations than this give no quantile."""
    unknown_grace_s: float = 60.0
    """How long a verdict may be unknown before that shows as a state of its own."""
    history_s: float = 600.0
    """How much of the past is kept at full resolution."""
    max_events: int = 200
