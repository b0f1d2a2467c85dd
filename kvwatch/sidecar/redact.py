"""Takes secrets out of what is shown or logged."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

from kvwatch.settings import plain
from kvwatch.settings.plain import HIDDEN

_SHORTEST = 4


def shown_url(url: str) -> str:
    """A URL without its user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return urlunsplit((parts.scheme, host + port, parts.path, "", ""))


def secrets_of(url: str, *words: str) -> tuple[str, ...]:
    """The secret words of a target: those given, and the user's password and query values in its URL."""
    parts = urlsplit(url)
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    found = (*words, parts.password, *values)
    return tuple(word for word in found if word and len(word) >= _SHORTEST)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the secrets given, without users in URLs, and without what looks like a credential."""
    for word in secrets:
        text = text.replace(word, HIDDEN)
    return plain.redacted(text)
