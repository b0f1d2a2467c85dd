"""Standard output and standard error: text without secrets and control characters, or JSON.

All commands write through this module.
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
from typing import TYPE_CHECKING, Any, NoReturn

from kvwatch.core.export.report import json_safe
from kvwatch.text.redact import escape, redact

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MAX_WIDTH = 110
"""Columns."""
_NOT_PRINTABLE_ASCII = re.compile(r"[^ -~]")


class OutputError(Exception):
    """Standard output can't be written; the text gives the reason."""


class _ClosedStream(io.TextIOBase):
    """Replaces a standard output that was closed before the start. The first write fails."""

    encoding = "utf-8"

    def write(self, _text: str) -> NoReturn:
        raise OSError(errno.EBADF, "standard output is closed")


def prepare_streams() -> None:
    """Makes the standard streams accept any text: characters that they can't encode become escapes."""
    if sys.stdout is None:
        sys.stdout = _ClosedStream()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Prints text."""
    with _checked_write():
        print(escape(redact(text)), end=end, flush=flush)


def sanitize(text: str) -> str:
    """`text` without secrets and control characters, for `draw`."""
    return escape(redact(text), keep="\n")


def terminal() -> Console:
    """A rich console at most 110 columns wide. It has colours only in a terminal without NO_COLOR."""
    from rich.console import Console

    in_terminal = sys.stdout.isatty()
    colours = "auto" if in_terminal and not os.environ.get("NO_COLOR") else None
    console = Console(file=sys.stdout, color_system=colours, highlight=False, emoji=False, markup=False)  # type: ignore[arg-type]
    console.width = min(console.width, _MAX_WIDTH) if in_terminal else _MAX_WIDTH
    return console


def draw(picture: RenderableType) -> None:
    """Prints what rich renders. Every text in it must have passed `sanitize`."""
    console = terminal()
    with console.capture() as drawn:
        console.print(picture, crop=False)
    with _checked_write():
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)


def print_error(line: str) -> None:
    """Prints one line to standard error, if that can be written."""
    with contextlib.suppress(OSError):
        print(f"kvwatch: {escape(redact(line), keep='')}", file=sys.stderr)


def print_json(data: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Prints JSON without secrets; in ASCII unless standard output is UTF-8."""
    text = json.dumps(
        _redact_all(json_safe(data)), indent=indent, ensure_ascii=not _is_utf8(), allow_nan=False
    )
    if not text.isascii() or "\x7f" in text:
        text = _NOT_PRINTABLE_ASCII.sub(lambda found: _escape_json(found[0]), text)
    with _checked_write():
        print(text, flush=indent is None)


def flush() -> None:
    """Writes what is still buffered."""
    with _checked_write():
        sys.stdout.flush()


def discard_rest() -> None:
    """Sends what Python still has buffered to the null device."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _checked_write() -> Iterator[None]:
    """Turns an OSError into an `OutputError`; a broken pipe passes."""
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


def _escape_json(char: str) -> str:
    if char.isprintable() or char == "\n":
        return char
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def _redact_all(value: Any) -> Any:
    """Plain data without secrets in its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _redact_all(one) for name, one in value.items()}
    return [_redact_all(one) for one in value] if isinstance(value, list) else value
