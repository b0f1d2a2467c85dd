"""Writes recordings so that an interruption loses at most one record."""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path
from types import TracebackType
from typing import Self

from kvwatch.recording.format import Record, RecordingError, WriteError, to_fields


class Writer:
    """Writes a recording to ``FILE.part``, which becomes ``FILE`` when closed.

    Every record is flushed through the compression, so an interrupted recording is readable up to its last record.
    A recording without records leaves no file.
    """

    def __init__(self, path: Path | str, *, force: bool = False) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.records = 0
        self.bytes = 0
        self.longest = 0
        """Bytes of the longest record so far."""
        self._force = force
        if self.path.is_dir():
            raise RecordingError(f"{self.path} is a folder; name a file in it")
        if not force:
            for taken in (self.path, self.part):
                if taken.exists():
                    raise RecordingError(f"{taken} exists; choose another name, or overwrite it with --force")
        self._broken = False
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            raise RecordingError(f"can't write {self.part}: {error.strerror or error}") from None
        self._packer = zlib.compressobj(wbits=31)

    def write(self, record: Record) -> None:
        line = json.dumps(to_fields(record), ensure_ascii=False, separators=(",", ":"))
        packed = self._packer.compress(f"{line}\n".encode(errors="replace"))
        before = self.bytes
        self._put(packed + self._packer.flush(zlib.Z_SYNC_FLUSH))
        self.longest = max(self.longest, self.bytes - before)
        self.records += 1

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._broken = True
            with contextlib.suppress(OSError):  # leaves no partial record; readers accept one, too
                self._file.truncate(self.bytes)
            raise WriteError(f"can't write {self.part}: {error.strerror or error}") from None
        self.bytes += len(data)

    def discard(self) -> None:
        """Ends without a recording: removes the ``.part`` file; an older file of the same name stays."""
        if not self._file.closed:
            self._file.close()
            self.part.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the recording. After a write error it keeps the records written before."""
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
            self._rename()

    def _rename(self) -> None:
        if self.path.exists() and not self._force:
            raise RecordingError(f"{self.path} was created meanwhile; the recording is in {self.part}")
        try:
            self.part.replace(self.path)
        except OSError as error:
            why = error.strerror or error
            raise WriteError(f"can't rename {self.part} to {self.path}: {why}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
