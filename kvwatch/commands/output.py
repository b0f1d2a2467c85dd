"""What goes out: to people without secrets and without what a terminal would obey, to programs as JSON.

The one place that writes; whatever else is printed goes through here.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from kvwatch.core.report import clean
from kvwatch.settings.plain import escaped, redacted

_UNSEEN = re.compile(r"[^ -~]")


class OutputError(Exception):
    """Standard output takes no more; the text says why."""


class _Closed(io.TextIOBase):
    """A standard output that was closed before the start: nothing is lost until something is written."""

    encoding = "utf-8"

    def write(self, _text: str) -> NoReturn:
        raise OSError(errno.EBADF, "standard output is closed")


def prepare() -> None:
    """Makes the standard streams take every text: what they have no character for is written as its code."""
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - to the end of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Prints for people."""
    with _writing():
        print(escaped(redacted(text)), end=end, flush=flush)


def complain(line: str) -> None:
    """Prints one line to standard error. Where that can't be, there is nobody to tell."""
    with contextlib.suppress(OSError):
        print(f"kvwatch: {escaped(redacted(line), keep='')}", file=sys.stderr)


def print_json(data: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Prints for programs; in ASCII where standard output is not UTF-8."""
    text = json.dumps(_shown(clean(data)), indent=indent, ensure_ascii=not _is_utf8(), allow_nan=False)
    if not text.isascii() or "\x7f" in text:
        text = _UNSEEN.sub(lambda found: _as_json(found[0]), text)
    with _writing():
        print(text, flush=indent is None)


def finish() -> None:
    """Writes what is still held back."""
    with _writing():
        sys.stdout.flush()


def give_up() -> None:
    """Lets what Python still wants to write at its end go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"can't write the output: {error.strerror or error}") from None


def _is_utf8() -> bool:
    try:
        return codecs.lookup(sys.stdout.encoding or "").name == "utf-8"
    except (LookupError, AttributeError):
        return False


def _as_json(char: str) -> str:
    return (
        char
        if char.isprintable() or char == "\n"
        else json.dumps(char)[1:-1]
        if char != "\x7f"
        else "\\u007f"
    )


def _shown(value: Any) -> Any:
    """Plain data with no secret in its texts."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list) else value
