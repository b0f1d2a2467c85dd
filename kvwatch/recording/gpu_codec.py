"""Readings of GPUs in the lines of a recording: written without what is not known, read with forgiveness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.core.model.gpu import MAX_GPUS, Gpu, GpuReading, distinct_gpus

_SAID = (
    "uuid",
    "name",
    "sm_active",
    "dram_active",
    "utilization",
    "memory_used_bytes",
    "memory_free_bytes",
)
_LONGEST = 200
_MOST_BYTES = 1e15


def as_fields(reading: GpuReading) -> dict[str, Any]:
    """The fields of a line; none for a reading of no GPU."""
    if not reading.gpus:
        return {}
    return {"gpu": [_said(gpu, reading.source) for gpu in reading.gpus], "gpu_interval": reading.interval_s}


def _said(gpu: Gpu, source: str) -> dict[str, Any]:
    fields = {name: getattr(gpu, name) for name in _SAID}
    known = {name: value for name, value in fields.items() if value not in (None, "")}
    return {"gpu": gpu.label, "source": source} | known | ({"owners": list(gpu.owners)} if gpu.owners else {})


def of_fields(fields: Mapping[str, Any]) -> GpuReading | None:
    """The reading in a line; None if there is none that can be understood."""
    said = fields.get("gpu")
    if not isinstance(said, list):
        return None
    known = [one for one in said[:MAX_GPUS] if isinstance(one, dict) and _text(one.get("gpu"))]
    gpus = distinct_gpus(map(_gpu, known))
    if not gpus:
        return None
    interval = _number(fields.get("gpu_interval"), 3600.0)
    return GpuReading(gpus, _text(known[0].get("source")) or "recording", interval_s=interval or 5.0)


def _gpu(said: Mapping[str, Any]) -> Gpu:
    owners = said.get("owners")
    return Gpu(
        label=_text(said.get("gpu")),
        uuid=_text(said.get("uuid")),
        name=_text(said.get("name")),
        sm_active=_number(said.get("sm_active"), 1.0),
        dram_active=_number(said.get("dram_active"), 1.0),
        utilization=_number(said.get("utilization"), 1.0),
        memory_used_bytes=_number(said.get("memory_used_bytes"), _MOST_BYTES),
        memory_free_bytes=_number(said.get("memory_free_bytes"), _MOST_BYTES),
        owners=tuple(map(_text, owners[:MAX_GPUS])) if isinstance(owners, list) else (),
    )


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _number(value: Any, most: float) -> float | None:
    """A number from 0 to `most`, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None  # no comparison holds for NaN
