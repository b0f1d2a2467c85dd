"""Recordings of raw scrapes: gzipped JSON lines, one line per scrape.

    {"t": unix seconds, "status": 200, "body": "…", "content_type": "…"}
    {"t": unix seconds, "status": 0, "error": "…"}      the server was not reachable

Optional fields of a line:

* ``"gpu"``, one object per GPU of the server, if GPUs were read since the line before; ``"gpu_interval"`` is the
  interval of these readings in seconds
* ``"facts"``, the answers of ``/version`` and ``/v1/models``
* ``"warmup": true``, if the line is left out of comparisons
* ``"label"``, the name of the run; only on the first line
"""

from kvwatch.recording.format import (
    MAX_LABEL,
    Record,
    RecordingError,
    Skipped,
    WriteError,
    failure_of,
    outcome_of,
)
from kvwatch.recording.pace import ClockStep, with_spacing
from kvwatch.recording.read import MAX_LINE, open_file, read
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
