"""A comparison as plain data, for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvwatch.experiment.caution import Caution, Side
from kvwatch.experiment.comparability import requests_per_second
from kvwatch.experiment.comparison import Candidate, Comparison
from kvwatch.experiment.comparison_rows import method, verdict_word
from kvwatch.experiment.differences import Difference
from kvwatch.experiment.estimate import Estimate
from kvwatch.experiment.measures import MEASURES, Measure, Scale


def as_data(comparison: Comparison) -> dict[str, Any]:
    """All of it. Ratios are 0-1; a difference of scale ``ratio`` is a share of the baseline."""
    return {
        "runs": [_run(side) for side in comparison.sides],
        "candidates": [_candidate(one) for one in comparison.candidates],
        "cautions": _cautions(comparison.cautions),
        "measures": [_measure(measure, comparison) for measure in MEASURES],
        "margin_ratio": comparison.margin,
        "method": method(comparison),
    }


def _run(side: Side) -> dict[str, Any]:
    run = side.run
    return {
        "name": run.name,
        "began_at": run.began,
        "duration_s": round(run.duration_s, 3),
        "warmup_s": round(run.warmup_s, 3),
        "interval_s": run.interval_s,
        "scrapes": run.scrapes,
        "failed_scrapes": run.failed,
        "restarts": run.restarts,
        "requests_per_second": requests_per_second(side),
        "engines": run.engines,
        "models": list(run.models),
        "generation": run.generation,
        "peaks": dict(run.peaks),
        "block_s": side.estimates.block_s,
        "independent_blocks": side.estimates.blocks,
        "configuration": dict(run.configuration),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.side.run.name,
        "verdict": verdict_word(candidate),
        "same_within_ratio": candidate.same_within,
        "changed": [
            {
                "name": one.name,
                "title": one.title,
                "baseline": one.baseline,
                "candidate": one.candidate,
                "follows": one.follows,
            }
            for one in candidate.changed
        ],
        "cautions": _cautions(candidate.cautions),
    }


def _cautions(cautions: Sequence[Caution]) -> list[dict[str, str]]:
    return [{"id": one.id, "weight": str(one.weight), "text": one.text} for one in cautions]


def _measure(measure: Measure, comparison: Comparison) -> dict[str, Any]:
    return {
        "id": measure.id,
        "title": measure.title,
        "group": str(measure.group),
        "better": str(measure.better),
        "scale": str(measure.scale),
        "headline": measure.headline,
        "margin": measure.margin if measure.scale is Scale.DIFFERENCE else comparison.margin,
        "values": [_estimate(side.estimates.by_id[measure.id]) for side in comparison.sides],
        "differences": [_difference(one.differences[measure.id]) for one in comparison.candidates],
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    return {
        "value": found.value,
        "at_least": found.at_least,
        "bucket": None if found.within is None else list(found.within),
        "missing": found.missing or None,
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "verdict": str(found.verdict),
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "reason": found.reason or None,
    }
