"""Version and longest request of a server, as its other endpoints or a recording report them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_MODELS = 1000
MAX_CHARACTERS = 1000
"""Characters of a model name or a version. Each becomes a label value."""
MAX_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What endpoints other than /metrics report. They are read rarely; None is unknown."""

    version: str | None = None
    max_model_len: Mapping[str, int] | None = None
    """Longest request in tokens, by served model name (``/v1/models``)."""


def server_info_from(version: Any, lengths: Iterable[tuple[Any, Any]]) -> ServerInfo:
    """Validates what a server or a recording reports; whatever is not valid becomes None or is left out.

    `lengths` are pairs of a served model name and its longest request in tokens.
    """
    valid_version = isinstance(version, str) and 0 < len(version) <= MAX_CHARACTERS
    found = {
        name: length
        for name, length in islice(lengths, MAX_MODELS)
        if isinstance(name, str) and len(name) <= MAX_CHARACTERS
        if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= MAX_TOKENS
    }
    return ServerInfo(version if valid_version else None, found or None)
