"""Writes recordings so that nothing is lost, whatever ends them."""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvwatch.recording import gpu_codec, server_info_codec
from kvwatch.recording.records import Record, RecordingError, WriteError


class Writer:
    """Writes a recording to ``FILE.part``, which becomes ``FILE`` when closed.

    Every record is flushed through the compression, so an interrupted recording can be read up to the last one.
    One without any record is no recording: nothing is left of it.
    """

    def __init__(self, path: Path | str, *, force: bool = False) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.records = 0
        self.bytes = 0
        self.longest = 0
        """Bytes that the longest record took so far."""
        self._force = force
        if self.path.is_dir():
            raise RecordingError(f"{self.path} is a folder; name a file in it")
        if not force:
            for taken in (self.path, self.part):
                if taken.exists():
                    raise RecordingError(
                        f"{taken} is there already; choose another name or --force to overwrite it"
                    )
        self._broken = False
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            raise RecordingError(f"can't write {self.part}: {error.strerror or error}") from None
        self._packer = zlib.compressobj(wbits=31)

    def write(self, record: Record) -> None:
        fields: dict[str, Any] = {"t": round(record.t, 3), "status": record.status}
        if record.status:
            fields["body"] = record.body.decode(errors="replace")
        if record.content_type:
            fields["content_type"] = record.content_type
        if record.error:
            fields["error"] = record.error
        if record.gpu is not None:
            fields |= gpu_codec.as_fields(record.gpu)
        if record.facts is not None:
            fields |= server_info_codec.as_fields(record.facts)
        if record.warmup:
            fields["warmup"] = True
        if record.label:
            fields["label"] = record.label
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        before = self.bytes
        self._put(self._packer.compress(line) + self._packer.flush(zlib.Z_SYNC_FLUSH))
        self.longest = max(self.longest, self.bytes - before)
        self.records += 1

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._broken = True
            with contextlib.suppress(OSError):  # no half of a record; one is understood, too
                self._file.truncate(self.bytes)
            raise WriteError(f"can't write {self.part}: {error.strerror or error}") from None
        self.bytes += len(data)

    def discard(self) -> None:
        """Ends without a recording: what was written goes away, a file of that name from before stays."""
        if not self._file.closed:
            self._file.close()
            self.part.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the recording. Of one that could not be written to its end what was written is kept."""
        if self._file.closed:
            return
        if not self.records:
            self.discard()
            return
        try:
            if not self._broken:
                self._put(self._packer.flush())
        finally:
            self._file.close()
            self._name()

    def _name(self) -> None:
        if self.path.exists() and not self._force:
            raise RecordingError(f"{self.path} came to be meanwhile; the recording is in {self.part}")
        try:
            self.part.replace(self.path)
        except OSError as error:
            raise WriteError(
                f"can't name it {self.path}: {error.strerror or error}; the recording is in {self.part}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
