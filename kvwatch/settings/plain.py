"""What may be shown: without secrets, and without what a terminal would obey."""

from __future__ import annotations

import re

HIDDEN = "***"
_SECRETIVE = (
    r"(?:token|secret|pass(?:word|wd|phrase)?|pwd|key|auth(?:orization)?|credentials?|sig(?:nature)?"
    r"|jwt|session)"
)
# Each reads a stretch of text once, whatever is in it: servers and logs choose what is searched here.
_AFTER_SLASHES = re.compile(r"//[^\s\"<>]*+")
_AUTHORIZATION = re.compile(r"(?i)\b(?P<kind>bearer|basic)\s+[a-z0-9._~+/=-]{4,}")
_PARAMETER = re.compile(rf"(?i)(?<![^\W_])(?P<name>(?:api)?{_SECRETIVE})=[^&\s\"'<>]+")
_IN_A_QUERY = re.compile(r"(?P<name>[?&;][^=&\s\"<>]*+)(?P<value>=[^&\s\"<>]++)?")
_SECRET = re.compile(rf"(?i){_SECRETIVE}")


def redacted(text: str) -> str:
    """`text` without the users and passwords of URLs in it, and without what looks like a credential."""
    text = _AFTER_SLASHES.sub(_without_user, text)
    text = _AUTHORIZATION.sub(rf"\g<kind> {HIDDEN}", text)
    text = _IN_A_QUERY.sub(_without_value, text)
    return _PARAMETER.sub(rf"\g<name>={HIDDEN}", text)


def _without_user(found: re.Match[str]) -> str:
    _, at, rest = found[0].rpartition("@")
    return f"//{HIDDEN}@{rest}" if at else found[0]


def _without_value(found: re.Match[str]) -> str:
    hidden = found["value"] and _SECRET.search(found["name"])
    return f"{found['name']}={HIDDEN}" if hidden else found[0]


def redacted_url(url: str) -> str:
    """`url`, with or without a scheme, without a user, a password or a credential in its query."""
    return redacted(re.sub(r"(^|//|[=,])[^/\s,=]*@", rf"\1{HIDDEN}@", url))


def escaped(text: str, keep: str = "\n\t") -> str:
    """`text` with what can't be seen, such as control characters and marks of direction, as ``\\u001b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _code(char) for char in text)


def _code(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
