"""What a recording consists of, and what can be wrong with one."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.server_info import ServerInfo


class RecordingError(Exception):
    """A file that can't be used as a recording; the text says why and what to do."""


class WriteError(RecordingError):
    """A recording can't be written any further, as when the disk is full."""


@dataclass(frozen=True, slots=True)
class Record:
    """One scrape as it came; `status` is that of HTTP, or 0 with `error`."""

    t: float
    status: int
    body: bytes = b""
    error: str = ""
    content_type: str = ""
    gpu: GpuReading | None = None
    """What was read of the server's GPUs since the record before, if anything."""
    facts: ServerInfo | None = None
    """What other endpoints of the server said since the record before, if anything."""
    warmup: bool = False
    """Of the time before the server had its pace: kept, and left out of comparisons."""
    label: str = ""
    """What the run is called; on the first record of one that has a name."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be read, or the place where the file breaks off."""

    line: int
    reason: str
