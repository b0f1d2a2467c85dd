"""Recordings of raw scrapes: gzipped JSON lines, one a scrape.

``{"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}``, or with ``"status": 0`` and ``"error"``
where the server could not be reached. Either may have ``"gpu"``, one object for each of the server's GPUs, where
these were read since the line before, and ``"gpu_interval"``, the spacing of such readings in seconds; ``"facts"``,
what ``/version`` and ``/v1/models`` said; and ``"warmup": true``, where it is not to be compared. The first line may
have ``"label"``, the name of the run.
"""

from kvwatch.recording.open_file import open_file
from kvwatch.recording.outcomes import failure_of, outcome_of
from kvwatch.recording.pace import ClockStep, with_spacing
from kvwatch.recording.read import MAX_LABEL, MAX_LINE, read
from kvwatch.recording.records import Record, RecordingError, Skipped, WriteError
from kvwatch.recording.write import Writer

__all__ = [
    "MAX_LABEL",
    "MAX_LINE",
    "ClockStep",
    "Record",
    "RecordingError",
    "Skipped",
    "WriteError",
    "Writer",
    "failure_of",
    "open_file",
    "outcome_of",
    "read",
    "with_spacing",
]
