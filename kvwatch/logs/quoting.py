"""Lines of a log as they may be quoted: short, and without what may be a secret.

Logs print options (``'api_key': ['…']``, ``--hf-token …``) that what kvwatch itself prints never has.
"""

from __future__ import annotations

import re

from kvwatch.settings.plain import HIDDEN, redacted

_SHOWN = 300
_NAME = r"[\w-]*(?:token|secret|password|passwd|api[_-]?key|[_-]key|credentials?|authorization)"
_ITEM = re.compile(
    rf"(?i)(?P<name>['\"]?\b{_NAME}['\"]?\s*[:=]\s*)(?:\[[^\]]*(?:\]|$)|'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|[^\s,)}}]+)"
)
_OPTION = re.compile(rf"(?i)(?P<name>--{_NAME}[= ]+)\S+")
_TOKEN = re.compile(r"\b(?:hf_|sk-|nvapi-|ghp_)[A-Za-z0-9_-]{8,}")


def quoted(text: str) -> str:
    """`text` as it may be shown."""
    text = _ITEM.sub(rf"\g<name>{HIDDEN}", _OPTION.sub(rf"\g<name>{HIDDEN}", text))
    text = redacted(_TOKEN.sub(HIDDEN, text)).strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
