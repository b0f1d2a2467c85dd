"""Recordings of raw scrapes: gzipped JSON lines, one a scrape.

``{"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}``, or with ``"status": 0`` and ``"error"``
where the server could not be reached. Either may have ``"gpu"``, one object for each of the server's GPUs, where
these were read since the line before, and ``"gpu_interval"``, the spacing of such readings in seconds.
"""

from kvwatch.recording.opening import opened
from kvwatch.recording.outcomes import failure_of, outcome
from kvwatch.recording.reading import MAX_LINE, read
from kvwatch.recording.records import Record, RecordingError, Skipped, WriteError
from kvwatch.recording.spacing import Step, spaced
from kvwatch.recording.writing import Writer

__all__ = [
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
