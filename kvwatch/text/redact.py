"""Removes secrets and control characters from text before it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"
_SECRETIVE = (
    r"(?:token|secret|pass(?:word|wd|phrase)?|pwd|key|auth(?:orization)?|credentials?|sig(?:nature)?"
    r"|jwt|session)"
)
# Possessive or bounded, so linear in time for any input: servers and logs choose the text.
_AUTHORITY = re.compile(r"//[^\s\"<>]*+")
_AUTHORIZATION = re.compile(r"(?i)\b(?P<kind>bearer|basic)\s+[a-z0-9._~+/=-]{4,}")
_PARAMETER = re.compile(rf"(?i)(?<![^\W_])(?P<name>(?:api)?{_SECRETIVE})=[^&\s\"'<>]+")
_QUERY_PARAMETER = re.compile(r"(?P<name>[?&;][^=&\s\"<>]*+)(?P<value>=[^&\s\"<>]++)?")
_SECRET = re.compile(rf"(?i){_SECRETIVE}")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, users and passwords in URLs, and anything that looks like a credential."""
    for word in secrets:
        text = text.replace(word, HIDDEN)
    text = _AUTHORITY.sub(_without_user, text)
    text = _AUTHORIZATION.sub(rf"\g<kind> {HIDDEN}", text)
    text = _QUERY_PARAMETER.sub(_without_value, text)
    return _PARAMETER.sub(rf"\g<name>={HIDDEN}", text)


def _without_user(found: re.Match[str]) -> str:
    _, at, rest = found[0].rpartition("@")
    return f"//{HIDDEN}@{rest}" if at else found[0]


def _without_value(found: re.Match[str]) -> str:
    hidden = found["value"] and _SECRET.search(found["name"])
    return f"{found['name']}={HIDDEN}" if hidden else found[0]


def redact_url(url: str) -> str:
    """`url` (with or without a scheme) without user, password and credentials in its query."""
    return redact(re.sub(r"(^|//|[=,])[^/\s,=]*@", rf"\1{HIDDEN}@", url))


def escape(text: str, keep: str = "\n\t") -> str:
    """`text` with invisible characters, such as control and direction marks, as ``\\u001b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _code(char) for char in text)


def _code(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


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


_SHORTEST_SECRET = 4


def secrets_of(url: str, *words: str) -> tuple[str, ...]:
    """The secrets of a target: `words`, the password and query values in its URL. Very short ones are left out."""
    parts = urlsplit(url)
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    found = (*words, parts.password, *values)
    return tuple(word for word in found if word and len(word) >= _SHORTEST_SECRET)


# Unlike other texts, lines of a vLLM log contain options ('api_key': ['…'], --hf-token …).

_MAX_SHOWN = 300
_MAX_SEARCHED = 4 * _MAX_SHOWN
"""Characters of a line that are searched. Longer than shown, because hidden parts make room for later ones."""
_OPTION_NAME = r"(?:token|secret|password|passwd|api[_-]?key|[_-]key|credentials?|authorization)"
_QUOTED = r"'(?>(?:[^'\\]|\\.)*)(?:'|$)|\"(?>(?:[^\"\\]|\\.)*)(?:\"|$)"
_LOGGED_ITEM = re.compile(
    rf"(?i)(?P<name>{_OPTION_NAME}\\?['\"]?\s*[:=]\s*)"
    rf"(?:\[[^\]]*(?:\]|$)|b?(?:{_QUOTED})|(?:(?:bearer|basic)\s+)?[^\s,)}}]+)"
)
_LOGGED_OPTION = re.compile(r"(?<![\w-])(?P<name>--[\w-]++)(?P<value>[= ]+\S++)")
_SECRET_FLAG = re.compile(rf"(?i){_OPTION_NAME}$")
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|nvapi-|ghp_)[A-Za-z0-9_-]{8,}")


def quote_log_line(text: str) -> str:
    """A line of a log without secrets, at most 300 characters long."""
    cut = len(text) > _MAX_SEARCHED
    if cut:  # at a word's end, because half a secret may not be recognised
        text = text[:_MAX_SEARCHED].rpartition(" ")[0]
    text = _LOGGED_ITEM.sub(rf"\g<name>{HIDDEN}", _LOGGED_OPTION.sub(_without_option_value, text))
    text = redact(_KNOWN_TOKEN.sub(HIDDEN, text)).strip()
    return text if len(text) <= _MAX_SHOWN and not cut else f"{text[: _MAX_SHOWN - 1]}…"


def _without_option_value(option: re.Match[str]) -> str:
    return f"{option['name']} {HIDDEN}" if _SECRET_FLAG.search(option["name"]) else option[0]
