"""A comparison as plain data, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvwatch.experiment.cautions import arrivals
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.comparison_rows import method, verdict_word
from kvwatch.experiment.estimate import Estimate, Side
from kvwatch.experiment.measures import MEASURES, Measure, Scale

_RUN_FIELDS = (
    "name", "began_at", "interval_s", "scrapes", "failed_scrapes", "restarts", "engines", "generation",
)  # fmt: skip
_MEASURE_FIELDS = ("id", "title", "group", "better", "scale", "headline")


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison. Ratios are 0-1; a difference of scale ``ratio`` is a share of the baseline."""
    return {
        "runs": [_run(side) for side in comparison.sides],
        "candidates": [_candidate(one) for one in comparison.candidates],
        "cautions": [asdict(one) for one in comparison.cautions],
        "measures": [_measure(measure, comparison) for measure in MEASURES],
        "margin_ratio": comparison.margin,
        "method": method(comparison),
    }


def _run(side: Side) -> dict[str, Any]:
    run, came = side.run, arrivals(side)
    return {
        **{name: getattr(run, name) for name in _RUN_FIELDS},
        "duration_s": round(run.duration_s, 3),
        "warmup_s": round(run.warmup_s, 3),
        "requests_per_second": came[1] if came else None,
        "models": list(run.models),
        "peaks": dict(run.peaks),
        "block_s": side.block_s,
        "independent_blocks": side.blocks,
        "configuration": dict(run.configuration),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.side.run.name,
        "verdict": verdict_word(candidate),
        "same_within_ratio": candidate.same_within,
        "changed": [asdict(one) for one in candidate.changed],
        "cautions": [asdict(one) for one in candidate.cautions],
    }


def _measure(measure: Measure, comparison: Comparison) -> dict[str, Any]:
    return {
        **{name: getattr(measure, name) for name in _MEASURE_FIELDS},
        "margin": measure.margin if measure.scale is Scale.DIFFERENCE else comparison.margin,
        "values": [_value(side.by_id[measure.id]) for side in comparison.sides],
        "differences": [asdict(one.differences[measure.id]) for one in comparison.candidates],
    }


def _value(found: Estimate) -> dict[str, Any]:
    return {
        "value": found.value,
        "at_least": found.at_least,
        "bucket": None if found.within is None else list(found.within),
        "missing": found.missing or None,
    }
