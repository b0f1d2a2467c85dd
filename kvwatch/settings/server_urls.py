"""URLs of servers as people write them: what may be left out, what is rejected, which are equal."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

DEFAULT_URL = "http://localhost:8000/metrics"

_NAME_AND_URL = re.compile(r"(?P<name>[^=/?#@]*)=(?P<url>.*)", re.DOTALL)
_CREDENTIALS = "set `username` and `password_file` of the target, or `token_file` for a bearer token"


def whole_url(url: str, credentials: str = _CREDENTIALS, *, path: str = "/metrics") -> str:
    """`url` with http:// and `path` added if missing.

    ValueError, with the remedy, if it is no URL or contains a user name; `credentials` is the remedy for the latter.
    """
    url = url.strip()
    parts = _split(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"unknown scheme {parts.scheme}; use http:// or https://")
    if "@" in parts.netloc:
        raise ValueError(
            f"a URL must not contain a user name or password, because URLs are logged; {credentials}"
        )
    if not parts.hostname or re.search(r"\s", url):
        raise ValueError(f"not a URL; write for example {DEFAULT_URL}")
    path = path if parts.path in {"", "/"} else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number, or too large
    except ValueError:
        raise ValueError(f"not a URL; write for example {DEFAULT_URL}") from None
    return parts


def same_server(one: str, other: str) -> bool:
    """Whether two URLs are the same server, however they are written. An invalid URL equals no other."""
    try:
        return _canonical(one) == _canonical(other)
    except ValueError:
        return False


def _canonical(url: str) -> tuple[str, str, int, str, str]:
    parts = urlsplit(whole_url(url))
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return parts.scheme, (parts.hostname or "").removesuffix("."), port, parts.path, parts.query


def parse_target(text: str) -> dict[str, str]:
    """Name, if there is one, and URL of ``name=url`` or ``url``."""
    found = _NAME_AND_URL.fullmatch(text.strip())
    return {"name": found["name"].strip(), "url": found["url"]} if found else {"url": text}
