"""What may be shown: without secrets, and without what a terminal would obey."""

from __future__ import annotations

import re

HIDDEN = "***"
_SECRETIVE = (
    r"(?:token|secret|pass(?:word|wd|phrase)?|pwd|key|auth(?:orization)?|credentials?|sig(?:nature)?"
    r"|jwt|session)"
)
_USERINFO = re.compile(r"//[^\s\"<>]*@")
_AUTHORIZATION = re.compile(r"(?i)\b(?P<kind>bearer|basic)\s+[a-z0-9._~+/=-]{4,}")
_PARAMETER = re.compile(rf"(?i)(?P<name>\b(?:[a-z0-9]+[_.-])*(?:api)?{_SECRETIVE})=[^&\s\"'<>]+")
_IN_A_QUERY = re.compile(rf"(?i)(?P<name>[?&;][^=&\s\"<>]*{_SECRETIVE}[^=&\s\"<>]*)=[^&\s\"<>]+")


def redacted(text: str) -> str:
    """`text` without the users and passwords of URLs in it, and without what looks like a credential."""
    text = _USERINFO.sub(f"//{HIDDEN}@", text)
    text = _AUTHORIZATION.sub(rf"\g<kind> {HIDDEN}", text)
    text = _IN_A_QUERY.sub(rf"\g<name>={HIDDEN}", text)
    return _PARAMETER.sub(rf"\g<name>={HIDDEN}", text)


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
