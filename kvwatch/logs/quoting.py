"""Lines of a log as they may be quoted: short, and without what may be a secret.

Logs print options (``'api_key': ['…']``, ``--hf-token …``) that what kvwatch itself prints never has.
"""

from __future__ import annotations

import re

from kvwatch.settings.plain import HIDDEN, redacted

_SHOWN = 300
_LOOKED_AT = 4 * _SHOWN
"""Characters that are looked at for what is shown: what is hidden makes room for what comes after it."""
_SECRETIVE = r"(?:token|secret|password|passwd|api[_-]?key|[_-]key|credentials?|authorization)"
_TEXT = r"'(?>(?:[^'\\]|\\.)*)(?:'|$)|\"(?>(?:[^\"\\]|\\.)*)(?:\"|$)"
_ITEM = re.compile(
    rf"(?i)(?P<name>{_SECRETIVE}\\?['\"]?\s*[:=]\s*)"
    rf"(?:\[[^\]]*(?:\]|$)|b?(?:{_TEXT})|(?:(?:bearer|basic)\s+)?[^\s,)}}]+)"
)
_OPTION = re.compile(r"(?<![\w-])(?P<name>--[\w-]++)(?P<value>[= ]+\S++)")
_SECRET = re.compile(rf"(?i){_SECRETIVE}$")
_TOKEN = re.compile(r"\b(?:hf_|sk-|nvapi-|ghp_)[A-Za-z0-9_-]{8,}")


def quoted(text: str) -> str:
    """`text` as it may be shown."""
    cut = len(text) > _LOOKED_AT
    if cut:  # before a word: half of a secret is not known by what it begins with
        text = text[:_LOOKED_AT].rpartition(" ")[0]
    text = _ITEM.sub(rf"\g<name>{HIDDEN}", _OPTION.sub(_without_value, text))
    text = redacted(_TOKEN.sub(HIDDEN, text)).strip()
    return text if len(text) <= _SHOWN and not cut else f"{text[: _SHOWN - 1]}…"


def _without_value(option: re.Match[str]) -> str:
    return f"{option['name']} {HIDDEN}" if _SECRET.search(option["name"]) else option[0]
