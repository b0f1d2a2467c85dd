"""The records of a recording: as values, as fields of a JSON line, and as outcomes of a scrape.

Fields that are not known are not written. Fields that are not understood are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvwatch.core.model.gpu import MAX_GPUS, Gpu, GpuReading, distinct_gpus
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo, server_info_from

MAX_LABEL = 100
"""Longest name of a run, characters."""
_MAX_TEXT = 200
_MAX_BYTES = 1e15
_GPU_NUMBERS = {
    "sm_active": 1.0,
    "dram_active": 1.0,
    "utilization": 1.0,
    "memory_used_bytes": _MAX_BYTES,
    "memory_free_bytes": _MAX_BYTES,
}
"""The largest accepted value of each number."""


class RecordingError(Exception):
    """A file can't be used as a recording; the text says why and what to do."""


class WriteError(RecordingError):
    """A recording can't be written further, for example because the disk is full."""


@dataclass(frozen=True, slots=True)
class Record:
    """One raw scrape. `t` unix seconds; `status` the HTTP status, or 0 with `error`."""

    t: float
    status: int
    body: bytes = b""
    error: str = ""
    content_type: str = ""
    gpu: GpuReading | None = None
    """GPUs of the server, if they were read since the record before."""
    facts: ServerInfo | None = None
    """Answers of the server's other endpoints since the record before."""
    warmup: bool = False
    """Recorded during warm-up; left out of comparisons."""
    label: str = ""
    """Name of the run; only on its first record."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be read, or the place where the file breaks off."""

    line: int
    reason: str


# -- records as JSON ---------------------------------------------------------------------------------------------


def to_fields(record: Record) -> dict[str, Any]:
    """The fields of a line."""
    fields: dict[str, Any] = {"t": round(record.t, 3), "status": record.status}
    if record.status:
        fields["body"] = record.body.decode(errors="replace")
    fields |= {name: text for name in ("content_type", "error") if (text := getattr(record, name))}
    if record.gpu is not None and record.gpu.gpus:
        fields["gpu"] = [_gpu_to_fields(gpu, record.gpu.source) for gpu in record.gpu.gpus]
        fields["gpu_interval"] = record.gpu.interval_s
    if record.facts is not None:
        lengths = record.facts.max_model_len
        known = {"version": record.facts.version, "max_model_len": lengths and dict(lengths)}
        fields["facts"] = {name: value for name, value in known.items() if value}
        if not fields["facts"]:
            del fields["facts"]
    if record.warmup:
        fields["warmup"] = True
    if record.label:
        fields["label"] = record.label
    return fields


def _gpu_to_fields(gpu: Gpu, source: str) -> dict[str, Any]:
    fields = {name: getattr(gpu, name) for name in ("uuid", "name", *_GPU_NUMBERS)}
    known = {name: value for name, value in fields.items() if value not in (None, "")}
    return {"gpu": gpu.label, "source": source} | known | ({"owners": list(gpu.owners)} if gpu.owners else {})


def from_fields(t: float, status: int, fields: Mapping[str, Any]) -> Record:
    """A record from the fields of a line, whose time and status are checked already."""
    body = fields.get("body")
    return Record(
        t,
        status,
        body.encode(errors="backslashreplace") if isinstance(body, str) else b"",
        str(fields.get("error") or ""),
        str(fields.get("content_type") or ""),
        _gpu_reading(fields),
        _server_info(fields.get("facts")),
        fields.get("warmup") is True,
        str(fields.get("label") or "")[:MAX_LABEL],
    )


def _gpu_reading(fields: Mapping[str, Any]) -> GpuReading | None:
    listed = fields.get("gpu")
    if not isinstance(listed, list):
        return None
    known = [one for one in listed[:MAX_GPUS] if isinstance(one, dict) and _text(one.get("gpu"))]
    gpus = distinct_gpus(map(_gpu, known))
    if not gpus:
        return None
    interval = _number(fields.get("gpu_interval"), 3600.0)
    return GpuReading(gpus, _text(known[0].get("source")) or "recording", interval_s=interval or 5.0)


def _gpu(fields: Mapping[str, Any]) -> Gpu:
    numbers = {name: _number(fields.get(name), most) for name, most in _GPU_NUMBERS.items()}
    owners = fields.get("owners")
    return Gpu(
        label=_text(fields.get("gpu")),
        uuid=_text(fields.get("uuid")),
        name=_text(fields.get("name")),
        owners=tuple(map(_text, owners[:MAX_GPUS])) if isinstance(owners, list) else (),
        **numbers,
    )


def _server_info(fields: Any) -> ServerInfo | None:
    if not isinstance(fields, dict):
        return None
    lengths = fields.get("max_model_len")
    info = server_info_from(fields.get("version"), lengths.items() if isinstance(lengths, dict) else ())
    return info if info != ServerInfo() else None


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any, most: float) -> float | None:
    """A number from 0 to `most`, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None  # no comparison holds for NaN


# -- records as outcomes -----------------------------------------------------------------------------------------

_KINDS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"refused|errno 111|errno 61", Failure.REFUSED),
        (r"time[d]?[ -]?out|no (whole |complete )?answer|errno 110", Failure.TIMEOUT),
        (r"name resolution|resolve|getaddrinfo|name or service|nodename|\bdns\b", Failure.DNS),
        (r"\bssl\b|\btls\b|certificate", Failure.TLS),
        (r"http (status|error)|status code", Failure.HTTP_STATUS),
        (r"too large|longer than|body size", Failure.TOO_LARGE),
        (r"malformed|compressed|encoded", Failure.MALFORMED),
    )
)
"""The kind of failure by the text of an error; the first match counts."""


def outcome_of(record: Record, *, interval_s: float, pace: Pace = Pace.FULL) -> Outcome:
    """A record as the outcome of a scrape; `interval_s` is the polling interval around it."""
    if record.status == 200:
        return Scrape(
            record.body,
            record.t,
            interval_s=interval_s,
            pace=pace,
            content_type=record.content_type,
            facts=record.facts,
            gpu=record.gpu,
        )
    if record.status:
        kind, detail = Failure.HTTP_STATUS, f"the server answers with HTTP status {record.status}"
    else:
        detail = " ".join(record.error.split())[:200] or "not reachable"
        kind = failure_of(detail)
    return ScrapeError(kind, detail, record.t, interval_s=interval_s, gpu=record.gpu)


def failure_of(text: str) -> Failure:
    """The kind of failure by the text of an error."""
    return next((kind for pattern, kind in _KINDS if pattern.search(text)), Failure.CONNECTION)
