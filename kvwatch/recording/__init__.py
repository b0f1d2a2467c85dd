"""Recordings of raw scrapes: gzipped JSON lines, one a scrape.

``{"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}``, or with ``"status": 0`` and ``"error"``
where the server could not be reached. Either may have ``"gpu"``, one object for each of the server's GPUs, where
these were read since the line before, and ``"gpu_interval"``, the spacing of such readings in seconds; ``"facts"``,
what ``/version`` and ``/v1/models`` said; and ``"warmup": true``, where it is not to be compared. The first line may
have ``"label"``, the name of the run.
"""

from kvwatch.recording.opening import opened
from kvwatch.recording.outcomes import failure_of, outcome
from kvwatch.recording.reading import MAX_LABEL, MAX_LINE, read
from kvwatch.recording.records import Record, RecordingError, Skipped, WriteError
from kvwatch.recording.spacing import Step, spaced
from kvwatch.recording.writing import Writer

__all__ = [
    "MAX_LABEL",
    "MAX_LINE",
    "Record",
    "RecordingError",
    "Skipped",
    "Step",
    "WriteError",
    "Writer",
    "failure_of",
    "opened",
    "outcome",
    "read",
    "spaced",
]
