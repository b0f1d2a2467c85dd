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
from typing import TYPE_CHECKING, Any, NoReturn

from kvwatch.core.export.report import json_safe
from kvwatch.text.redact import escape, redact

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDEST = 110
"""Columns of what is drawn."""
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
        print(escape(redact(text)), end=end, flush=flush)


def shown(text: str) -> str:
    """`text` as it may be shown: without secrets, and without what a terminal would obey. For `draw`."""
    return escape(redact(text), keep="\n")


def screen() -> Console:
    """What draws: plain where nobody looks or no colour is wanted, and never wider than one can read."""
    from rich.console import Console

    looked_at = sys.stdout.isatty()
    colours = "auto" if looked_at and not os.environ.get("NO_COLOR") else None
    console = Console(file=sys.stdout, color_system=colours, highlight=False, emoji=False, markup=False)  # type: ignore[arg-type]
    console.width = min(console.width, _WIDEST) if looked_at else _WIDEST
    return console


def draw(picture: RenderableType) -> None:
    """Prints for people what `rich` draws: tables and colours. Every text in it must have passed `shown`."""
    console = screen()
    with console.capture() as drawn:
        console.print(picture, crop=False)
    with _writing():
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def complain(line: str) -> None:
    """Prints one line to standard error. Where that can't be, there is nobody to tell."""
    with contextlib.suppress(OSError):
        print(f"kvwatch: {escape(redact(line), keep='')}", file=sys.stderr)


def print_json(data: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Prints for programs; in ASCII where standard output is not UTF-8."""
    text = json.dumps(_shown(json_safe(data)), indent=indent, ensure_ascii=not _is_utf8(), allow_nan=False)
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
        return redact(value)
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list) else value
